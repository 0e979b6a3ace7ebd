"""`SFTConfig`: the whole configuration of `burnish sft`, supervised fine-tuning."""

from dataclasses import dataclass
from typing import Any

from burnish.config.data import TRUNCATION
from burnish.config.key import key, section
from burnish.config.model import ModelConfig
from burnish.config.optim import ClippedOptimConfig
from burnish.config.trainer import TRACKED, TRACKER, RunConfig

SFT_DATA = "data/sft.py"
SFT = "trainer/sft.py"


@dataclass
class SFTDataConfig:
    """Conversations, or prompts with their responses."""

    train_files: list[str] = key(None, "training rows: parquet, json or jsonl; one or a list", reader=SFT, path=True)
    val_files: list[str] = key(None, "validation rows; null: no validation", reader=SFT, path=True)
    messages_key: str = key("messages", "column with the conversation", reader=SFT_DATA)
    prompt_key: str | None = key(None, "column with the prompt, instead of a conversation", reader=SFT_DATA)
    response_key: str | None = key(None, "column with the response, beside prompt_key", reader=SFT_DATA)
    max_length: int = key(1024, "tokens of one example at most", reader=SFT_DATA, low=2)
    truncation: str = key("error", "what to do with a longer one", reader=SFT_DATA, choices=TRUNCATION)
    train_batch_size: int = key(256, "examples per optimiser step", reader=SFT, low=1)
    micro_batch_size_per_gpu: int | None = key(
        None, "examples per forward and backward pass; null: 16384 tokens at max_length", reader=SFT, low=1
    )
    packing: bool = key(
        True, "fill a pass with micro_batch_size_per_gpu × max_length tokens, instead of so many examples", reader=SFT
    )
    shuffle: bool = key(True, "draw rows in random order", reader=SFT)
    seed: int = key(1, "seed of the order of rows", reader=SFT, low=0)
    train_max_samples: int = key(-1, "training rows used; -1: all", reader=SFT, low=-1)
    val_max_samples: int = key(-1, "validation rows used; -1: all", reader=SFT, low=-1)
    apply_chat_template_kwargs: dict[str, Any] = key({}, "arguments for the chat template", reader=SFT_DATA)


@dataclass
class SFTTrainerConfig(RunConfig):
    """The SFT trainer."""

    max_ckpt_to_keep: int | None = key(None, "checkpoints kept; null: all", reader=SFT, low=1)


@dataclass
class SFTConfig:
    """Everything `burnish sft` can be told."""

    data: SFTDataConfig = section(SFTDataConfig)
    model: ModelConfig = section(ModelConfig, readers={"path": SFT, "tokenizer_path": SFT})
    optim: ClippedOptimConfig = section(ClippedOptimConfig, readers={"grad_clip": SFT}, lr=1e-5)
    trainer: SFTTrainerConfig = section(
        SFTTrainerConfig,
        readers=dict.fromkeys(TRACKED, TRACKER) | {"*": SFT},
        experiment_name="sft",  # so that an SFT run and the PPO run that follows it do not share a folder
    )
