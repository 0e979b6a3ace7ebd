"""Passes of models over one batch that do not need each other: old log-probs, the reference, values.

Each is begun as soon as it can be and waited for at the end, so that those on separate devices run at the same
time. On one device, or in one process, they run one after another.
"""

from collections.abc import Callable
from typing import Any

from burnish.controller.group import Future
from burnish.protocol import DataProto, object_column
from burnish.tracking.timer import timed

ROW = "row_of_passes"  # column of a batch whose passes began before all of its rows were known to stay
READ = ("input_ids", "attention_mask", "responses")


class Passes:
    """The passes over `batch`. Their seconds are those that the controller waited for each."""

    def __init__(self, batch: DataProto, metrics: dict[str, float]):
        self.metrics = metrics
        self.given = batch.select(READ, [])  # all that a pass of a model reads
        self._begun: list[tuple[str, Future]] = []

    def begin(self, name: str, start: Callable[..., Future], *arguments: Any) -> None:
        """Begin a pass: `start` gives the future of the columns that it adds."""
        with timed(self.metrics, name):
            self._begun.append((name, start(self.given, *arguments)))

    def join(self, batch: DataProto) -> DataProto:
        """The batch with the columns of all passes; where rows were dropped since they began, without those."""
        rows = batch.non_tensor_batch.pop(ROW, None)
        for name, future in self._begun:
            with timed(self.metrics, name):
                added: DataProto = future.get()
            batch = batch.union(added if rows is None else added[rows.astype(int)])
        return batch


def with_row_numbers(batch: DataProto) -> None:
    """Number the rows, so that `join` can match them when some are dropped."""
    batch.non_tensor_batch[ROW] = object_column(list(range(len(batch))))
