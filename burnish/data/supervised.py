"""Examples to learn from: the rows of some files, rendered and checked, and batches of them as a function of the step.

Consumes files, a tokenizer and what to make of a row: `sft.py` makes a conversation with a loss mask, `preference.py` a
pair of conversations. Hands on examples by number (`Examples`) and by step (`Batches`). How many examples one pass of
the model holds is the trainer's business: a step has the same examples however it is cut.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Sized
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from burnish.config.supervised import SupervisedDataConfig
from burnish.data.chat import ChatRenderer, truncate
from burnish.data.files import Row, at, read_rows
from burnish.data.order import Order
from burnish.data.shares import largest_remainder
from burnish.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)


class Tokens(Sized, Protocol):
    """What every example has: the ids of all its tokens, and their number as its length."""

    @property
    def ids(self) -> np.ndarray: ...


Example = TypeVar("Example", bound=Tokens)


class Examples(ABC, Generic[Example]):
    """All examples of the files. What was left out is logged, and kept in `notices`.

    max_samples  rows to use, -1 for all; several files give in proportion to their sizes, each its first rows
    """

    emptied: ClassVar[str]  # what is said of those that truncation leaves nothing to learn from, after their number

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
        self.max_length, self.truncation = config.max_length, config.truncation
        self.renderer = ChatRenderer(tokenizer, config.apply_chat_template_kwargs)
        self.notices: list[str] = []
        self._examples: list[Example] = []
        tables = [read_rows(file) for file in files]
        sizes = [len(table) for table in tables]
        if 0 <= max_samples < sum(sizes):
            sizes = largest_remainder(sizes, max_samples)
        for file, table, size in zip(files, tables, sizes, strict=True):
            self._examples += self._made(file, table[:size])
        if emptied := sum(sizes) - len(self._examples):
            self.say(f"{emptied} of {sum(sizes)} {self.emptied} after truncation; left out")
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
        """Columns of a figure per token, cut to `data.max_length` as `data.truncation` says; `what` is for messages."""
        count = len(columns[0])
        if count > self.max_length and self.truncation == "error":
            raise DataError(
                f"{what} has {count} tokens, over data.max_length={self.max_length}. Raise the limit, or set "
                "data.truncation=left|right|middle to cut such examples"
            )
        return [truncate(column, self.max_length, self.truncation) for column in columns]

    def say(self, notice: str) -> None:
        log.info(notice)
        self.notices.append(notice)

    def _made(self, file: str, table: Sequence[Row]) -> Iterator[Example]:
        for number, row in enumerate(table):
            try:
                example = self.example(row)
            except DataError as exc:
                raise DataError(f"{at(file, number)}: {exc}") from exc
            if example is not None:
                yield example


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
