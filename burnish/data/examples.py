"""Examples to learn from: the rows of some files, rendered and checked, and batches of them as a function of the step.

Consumes files, a tokenizer and what to make of a row: `sft.py` makes a conversation with a loss mask, `preference.py` a
pair of conversations. Produces examples by number (`Examples`) and by step (`Batches`). How many examples one forward
pass holds is up to the trainer: a step has the same examples however it is split.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Sized
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from burnish.config.supervised import SupervisedDataConfig
from burnish.data.chat import ChatRenderer, truncate
from burnish.data.files import Row, at, read_first_rows
from burnish.data.order import Order
from burnish.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)


class Tokenized(Sized, Protocol):
    """What every example has: the ids of all its tokens, and their number as its length."""

    @property
    def ids(self) -> np.ndarray: ...


Example = TypeVar("Example", bound=Tokenized)


class Examples(ABC, Generic[Example]):
    """All examples of the files. What was left out is logged, and kept in `notices`.

    max_samples  rows to use, -1 for all; several files give in proportion to their sizes, each its first rows
    """

    emptied: ClassVar[str]  # what the notice says of examples of which truncation leaves nothing, after their number

    def __init__(
        self,
        files: Sequence[str],
        tokenizer: "PreTrainedTokenizerBase",
        config: SupervisedDataConfig,
        *,
        max_samples: int = -1,
    ):
        if not files:
            raise DataError("no data files are given; set data.train_files")
        self.config = config
        self.renderer = ChatRenderer(tokenizer, config.apply_chat_template_kwargs)
        self.notices: list[str] = []
        tables = read_first_rows(files, max_samples)
        made = [
            self._make(at(file, i), row)
            for file, table in zip(files, tables, strict=True)
            for i, row in enumerate(table)
        ]
        self._examples = [example for example in made if example is not None]
        if emptied := len(made) - len(self._examples):
            self.say(f"{emptied} of {len(made)} {self.emptied} after truncation; skipped")
        if not self._examples:
            raise DataError(f"no example of {', '.join(map(str, files))} is left to learn from; raise data.max_length")

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, i: int) -> Example:
        return self._examples[i]

    @abstractmethod
    def example(self, row: Row) -> Example | None:
        """What a row teaches; None where truncation leaves nothing of it. A DataError need not name the row."""

    def shorten(self, what: str, *columns: list[int]) -> list[list[int]]:
        """Columns with a value per token, cut to `data.max_length` by `data.truncation`; `what` is for messages."""
        count, limit = len(columns[0]), self.config.max_length
        if count > limit and self.config.truncation == "error":
            raise DataError(
                f"{what} has {count} tokens, over data.max_length={limit}. Raise the limit, or set "
                "data.truncation=left|right|middle to cut such examples"
            )
        return [truncate(column, limit, self.config.truncation) for column in columns]

    def say(self, notice: str) -> None:
        log.info(notice)
        self.notices.append(notice)

    def _make(self, where: str, row: Row) -> Example | None:
        try:
            return self.example(row)
        except DataError as exc:
            raise DataError(f"{where}: {exc}") from exc


class Batches(Generic[Example]):
    """Batches as a function of the step: step s has positions s·batch_size and on of the stream of examples."""

    def __init__(self, dataset: Examples[Example], batch_size: int, *, seed: int, shuffle: bool = True):
        self.dataset, self.batch_size = dataset, batch_size
        self._order = Order([len(dataset)], seed, shuffle)

    def __len__(self) -> int:
        """Steps per epoch. The stream does not stop at an epoch's end, so no example is left out."""
        return max(1, len(self.dataset) // self.batch_size)

    def batch(self, step: int) -> list[Example]:
        """The examples of a step."""
        positions = range(step * self.batch_size, (step + 1) * self.batch_size)
        return [self.dataset[self._order.index(p)] for p in positions]

    def epoch(self, step: int) -> int:
        """The epoch in which a step starts."""
        return self._order.epoch(step * self.batch_size)

    def once(self) -> Iterator[list[Example]]:
        """Every example exactly once, in file order: what a validation pass goes through."""
        for start in range(0, len(self.dataset), self.batch_size):
            stop = min(start + self.batch_size, len(self.dataset))
            yield [self.dataset[i] for i in range(start, stop)]
