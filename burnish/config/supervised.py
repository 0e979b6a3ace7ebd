"""`SFTConfig` and `RMConfig`: the whole configurations of `burnish sft` (supervised fine-tuning) and `burnish rm` (a
reward model, trained on pairs of answers). `SupervisedConfig` has the settings that they share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from burnish.config.data import TRUNCATION
from burnish.config.key import Keys, key, keys_of, section
from burnish.config.model import ModelConfig
from burnish.config.optim import ClippedOptimConfig
from burnish.config.trainer import PROCESSES, RESTART, TRACKED, TRACKER, ProcessesConfig, RunConfig

DATA = "data/examples.py"
LOOP, WORKER = "trainer/supervised.py", "trainer/supervised_worker.py"
SFT, RM = "trainer/sft.py", "trainer/rm.py"
OF_PROCESSES = ("n_gpus_per_node", *keys_of(ProcessesConfig))
RUN_READERS = (
    dict.fromkeys(TRACKED, TRACKER) | dict.fromkeys(OF_PROCESSES, PROCESSES) | {"max_restarts": RESTART, "*": LOOP}
)


@dataclass
class SupervisedDataConfig(Keys, reader=LOOP):
    """Examples to learn from."""

    train_files: list[str] = key(None, "training rows: parquet, json or jsonl; one or a list", path=True)
    val_files: list[str] = key(None, "validation rows; null: no validation", path=True)
    max_length: int = key(1024, "longest conversation, in tokens", DATA, low=2)
    truncation: str = key("error", "what to do with a longer conversation", DATA, choices=TRUNCATION)
    train_batch_size: int = key(256, "examples per optimiser step", low=1)
    micro_batch_size_per_gpu: int | None = key(
        None, "examples per forward and backward pass; null: 16384 tokens at max_length", low=1
    )
    shuffle: bool = key(True, "draw rows in random order")
    seed: int = key(1, "seed of the order of rows", low=0)
    train_max_samples: int = key(-1, "training rows used; -1: all", low=-1)
    val_max_samples: int = key(-1, "validation rows used; -1: all", low=-1)
    apply_chat_template_kwargs: dict[str, Any] = key({}, "arguments for the chat template", DATA)
    escape_special_tokens: bool = key(False, "make special tokens in messages ordinary text", DATA)


@dataclass
class SupervisedTrainerConfig(RunConfig):
    """The trainer."""

    max_ckpt_to_keep: int | None = key(None, "number of checkpoints to keep; null: all", LOOP, low=1)


@dataclass
class SupervisedConfig(ABC):
    """Data, model, optimiser and trainer of a run that learns from given examples."""

    data: SupervisedDataConfig = section(SupervisedDataConfig)
    model: ModelConfig = section(ModelConfig, readers={"path": LOOP, "tokenizer_path": LOOP})
    optim: ClippedOptimConfig = section(ClippedOptimConfig, readers={"grad_clip": WORKER}, lr=1e-5)
    trainer: SupervisedTrainerConfig = section(SupervisedTrainerConfig, readers=RUN_READERS)

    @property
    @abstractmethod
    def columns(self) -> dict[str, str]:
        """The columns that every data file has to have, by the key that names each."""


@dataclass
class SFTDataConfig(SupervisedDataConfig, reader="data/examples.py"):
    """Conversations, or prompts with their responses."""

    messages_key: str = key("messages", "column with the conversation")
    prompt_key: str | None = key(None, "column with the prompt, instead of a conversation")
    response_key: str | None = key(None, "column with the response, with prompt_key")
    packing: bool = key(
        True,
        "pack examples up to micro_batch_size_per_gpu × max_length tokens per pass, instead of a fixed number",
        SFT,
    )


@dataclass
class SFTConfig(SupervisedConfig):
    """Every setting of `burnish sft`."""

    data: SFTDataConfig = section(SFTDataConfig, readers={"micro_batch_size_per_gpu": SFT})
    # The names differ so that SFT, RM and PPO runs that follow each other do not share a folder.
    trainer: SupervisedTrainerConfig = section(SupervisedTrainerConfig, readers=RUN_READERS, experiment_name="sft")

    @property
    def columns(self) -> dict[str, str]:
        """A conversation, or a prompt and its response."""
        data = self.data
        if data.prompt_key is None or data.response_key is None:
            return {"data.messages_key": data.messages_key}
        return {"data.prompt_key": data.prompt_key, "data.response_key": data.response_key}


@dataclass
class RMDataConfig(SupervisedDataConfig, reader="data/examples.py"):
    """Two answers to a prompt, of which one was preferred; or two whole conversations."""

    # From the left, so that the answers stay: they are what is compared. `reward_model.max_length` cuts so too.
    truncation: str = key("left", "what to do with a longer conversation", DATA, choices=TRUNCATION)
    train_batch_size: int = key(256, "pairs per optimiser step", LOOP, low=1)
    micro_batch_size_per_gpu: int | None = key(
        None, "pairs per forward and backward pass; null: 16384 tokens at max_length", RM, low=1
    )
    prompt_key: str = key("prompt", "column with the prompt (text or messages), for answers that are text")
    chosen_key: str = key("chosen", "column with the better answer: text or messages")
    rejected_key: str = key("rejected", "column with the worse answer: text or messages")
    margin_key: str | None = key(
        None, "column with a number: the margin by which the better answer's reward should be higher"
    )


@dataclass
class RMConfig(SupervisedConfig):
    """Every setting of `burnish rm`."""

    data: RMDataConfig = section(RMDataConfig)
    trainer: SupervisedTrainerConfig = section(SupervisedTrainerConfig, readers=RUN_READERS, experiment_name="rm")

    @property
    def columns(self) -> dict[str, str]:
        """The two answers, and the margin where there is one. Conversations hold their prompt themselves."""
        data = self.data
        margin = {"data.margin_key": data.margin_key} if data.margin_key is not None else {}
        return {"data.chosen_key": data.chosen_key, "data.rejected_key": data.rejected_key} | margin
