"""`Objective`: what a trainer of `supervised.py` learns, and from what. `sft.py` and `rm.py` each have one.

Consumes a configuration and a tokenizer; produces examples, batches of them, the model, and a batch's loss and metrics.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from burnish.algorithms.tally import Metrics
from burnish.config.supervised import SupervisedConfig
from burnish.data.examples import Example, Examples
from burnish.engine.batching import MicroBatch
from burnish.engine.forward import Forward
from burnish.engine.trainable import Loss
from burnish.protocol import DataProto

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Config = TypeVar("Config", bound=SupervisedConfig)

TOKENS_PER_PASS = 16384  # by default, where data.micro_batch_size_per_gpu is null


class Objective(ABC, Generic[Config, Example]):
    """What is learnt. A batch has a row for each example, with an `attention_mask` over all its tokens."""

    command: ClassVar[str]  # `burnish <command>`
    examples: ClassVar[str]  # what an example is called, in the plural

    def __init__(self, config: Config, tokenizer: "PreTrainedTokenizerBase"):
        self.config, self.tokenizer = config, tokenizer

    @property
    @abstractmethod
    def micro(self) -> MicroBatch:
        """What one pass holds."""

    @abstractmethod
    def dataset(self, files: Sequence[str], max_samples: int) -> Examples[Example]:
        """The examples in some files."""

    @abstractmethod
    def load_model(self, device: torch.device) -> "PreTrainedModel":
        """The model before its first step."""

    @abstractmethod
    def collate(self, examples: Sequence[Example]) -> DataProto:
        """Examples as a padded batch."""

    @abstractmethod
    def loss(self, forward: Forward, batch: DataProto) -> Loss:
        """The function from some rows of the batch to their share of its loss, and to what else is logged of them."""

    @abstractmethod
    def row_values(self, forward: Forward, rows: DataProto) -> dict[str, Tensor]:
        """What validation needs of each row, (b,) each."""

    @abstractmethod
    def validation(self, batch: DataProto, values: Mapping[str, Tensor]) -> Metrics:
        """A batch's part of the validation metrics, from the values of its rows."""


def tensors(batch: DataProto) -> TensorDictBase:
    """The tensor columns, which every batch made here has."""
    assert batch.batch is not None
    return batch.batch
