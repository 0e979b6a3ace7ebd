"""`SupervisedConfig`: the settings of all trainers that learn from given examples; `sft.py` and `rm.py` add to it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from burnish.config.data import TRUNCATION
from burnish.config.key import Keys, key, section
from burnish.config.model import ModelConfig
from burnish.config.optim import ClippedOptimConfig
from burnish.config.trainer import TRACKED, TRACKER, RunConfig

DATA = "data/examples.py"
LOOP = "trainer/supervised.py"
RUN_READERS = dict.fromkeys(TRACKED, TRACKER) | {"*": LOOP}


@dataclass
class SupervisedDataConfig(Keys, reader=LOOP):
    """Examples to learn from."""

    train_files: list[str] = key(None, "training rows: parquet, json or jsonl; one or a list", path=True)
    val_files: list[str] = key(None, "validation rows; null: no validation", path=True)
    max_length: int = key(1024, "longest conversation, in tokens", reader=DATA, low=2)
    truncation: str = key("error", "what to do with a longer conversation", reader=DATA, choices=TRUNCATION)
    train_batch_size: int = key(256, "examples per optimiser step", low=1)
    micro_batch_size_per_gpu: int | None = key(
        None, "examples per forward and backward pass; null: 16384 tokens at max_length", low=1
    )
    shuffle: bool = key(True, "draw rows in random order")
    seed: int = key(1, "seed of the order of rows", low=0)
    train_max_samples: int = key(-1, "training rows used; -1: all", low=-1)
    val_max_samples: int = key(-1, "validation rows used; -1: all", low=-1)
    apply_chat_template_kwargs: dict[str, Any] = key({}, "arguments for the chat template", reader=DATA)


@dataclass
class SupervisedTrainerConfig(RunConfig):
    """The trainer."""

    max_ckpt_to_keep: int | None = key(None, "number of checkpoints to keep; null: all", reader=LOOP, low=1)


@dataclass
class SupervisedConfig(ABC):
    """Data, model, optimiser and trainer of a run that learns from given examples."""

    data: SupervisedDataConfig = section(SupervisedDataConfig)
    model: ModelConfig = section(ModelConfig, readers={"path": LOOP, "tokenizer_path": LOOP})
    optim: ClippedOptimConfig = section(ClippedOptimConfig, readers={"grad_clip": LOOP}, lr=1e-5)
    trainer: SupervisedTrainerConfig = section(SupervisedTrainerConfig, readers=RUN_READERS)

    @property
    @abstractmethod
    def columns(self) -> dict[str, str]:
        """The columns that every data file has to have, by the key that names each."""
