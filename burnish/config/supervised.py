"""`SupervisedConfig`: what all trainers that learn from given examples can be told; `sft.py` and `rm.py` add to it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from burnish.config.data import TRUNCATION
from burnish.config.key import key, section
from burnish.config.model import ModelConfig
from burnish.config.optim import ClippedOptimConfig
from burnish.config.trainer import TRACKED, TRACKER, RunConfig

DATA = "data/examples.py"
LOOP = "trainer/supervised.py"
RUN_READERS = dict.fromkeys(TRACKED, TRACKER) | {"*": LOOP}


@dataclass
class SupervisedDataConfig:
    """Examples to learn from."""

    train_files: list[str] = key(None, "training rows: parquet, json or jsonl; one or a list", reader=LOOP, path=True)
    val_files: list[str] = key(None, "validation rows; null: no validation", reader=LOOP, path=True)
    max_length: int = key(1024, "tokens of one conversation at most", reader=DATA, low=2)
    truncation: str = key("error", "what to do with a longer one", reader=DATA, choices=TRUNCATION)
    train_batch_size: int = key(256, "examples per optimiser step", reader=LOOP, low=1)
    micro_batch_size_per_gpu: int | None = key(
        None, "examples per forward and backward pass; null: 16384 tokens at max_length", reader=LOOP, low=1
    )
    shuffle: bool = key(True, "draw rows in random order", reader=LOOP)
    seed: int = key(1, "seed of the order of rows", reader=LOOP, low=0)
    train_max_samples: int = key(-1, "training rows used; -1: all", reader=LOOP, low=-1)
    val_max_samples: int = key(-1, "validation rows used; -1: all", reader=LOOP, low=-1)
    apply_chat_template_kwargs: dict[str, Any] = key({}, "arguments for the chat template", reader=DATA)


@dataclass
class SupervisedTrainerConfig(RunConfig):
    """The trainer."""

    max_ckpt_to_keep: int | None = key(None, "checkpoints kept; null: all", reader=LOOP, low=1)


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
