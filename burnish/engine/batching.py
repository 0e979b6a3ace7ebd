"""Cuts of a batch: into mini-batches (one optimiser step each) and micro-batches (one forward pass each).

Consumes group ids or sequence lengths and hands on index arrays into the batch. A mini-batch holds whole groups and
is part of the algorithm; a micro-batch is only about memory and never changes a result.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np


def mini_batches(
    groups: Sequence[Hashable] | np.ndarray, count: int, *, epoch: int = 0, shuffle: bool = False, seed: int = 0
) -> list[np.ndarray]:
    """Split rows into `count` parts of whole groups, sizes as even as they can be; fewer only if groups are fewer.

    `groups` has one id per row (the `uid`). With `shuffle` the groups' order is drawn from (seed, epoch); otherwise
    it is the order of first appearance. Rows keep their order inside a group.
    """
    if count < 1:
        raise ValueError(f"count={count}: at least one mini-batch is needed")
    rows_of: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        rows_of.setdefault(group, []).append(row)
    order = list(rows_of.values())
    if shuffle:
        order = [order[i] for i in np.random.default_rng([seed, epoch]).permutation(len(order))]
    parts = np.array_split(np.arange(len(order)), min(count, len(order))) if order else []
    return [np.array([row for i in part for row in order[i]], dtype=np.int64) for part in parts]


@dataclass(frozen=True)
class MicroBatch:
    """How much one forward pass may hold; with neither bound, the whole batch."""

    max_sequences: int | None = None
    max_tokens: int | None = None

    @classmethod
    def choose(cls, by_tokens: bool, tokens: int, sequences: int | None) -> "MicroBatch":
        """A bound on tokens (`use_dynamic_bsz`), or one on sequences."""
        return cls(max_tokens=tokens) if by_tokens else cls(max_sequences=sequences)

    def cut(self, lengths: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Split rows so that each part holds at most `max_sequences` rows, padded to at most `max_tokens` tokens.

        A pass pads its rows to the longest of them, so a part costs rows × longest. Only a single sequence longer
        than the budget exceeds it, alone in its part. Without a budget rows keep their order. With one, rows go in
        by falling length, so that a part's sequences are about equally long and padding wastes little.
        """
        sizes = np.asarray(lengths, dtype=np.int64)
        most = self.max_sequences or max(len(sizes), 1)
        if self.max_tokens is None:
            return [np.arange(i, min(i + most, len(sizes))) for i in range(0, len(sizes), most)]
        parts: list[list[int]] = []
        for row in np.argsort(-sizes, kind="stable").tolist():
            fits = parts and len(parts[-1]) < most
            if fits and (len(parts[-1]) + 1) * sizes[parts[-1][0]] <= self.max_tokens:  # the first row is the longest
                parts[-1].append(row)
            else:
                parts.append([row])
        return [np.array(sorted(part), dtype=np.int64) for part in parts]
