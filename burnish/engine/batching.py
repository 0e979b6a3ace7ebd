"""Cuts of a batch: into mini-batches (one optimiser step each) and micro-batches (one forward pass each).

A mini-batch holds whole groups and is part of the algorithm; a micro-batch is only about memory and speed and never
changes a result, nor does the way in which `passes` divides rows among processes.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from burnish.engine.balance import balanced_partitions, micro_batches, workload
from burnish.engine.mesh import Mesh


def mini_batches(
    groups: Sequence[Hashable] | np.ndarray, count: int, *, epoch: int = 0, shuffle: bool = False, seed: int = 0
) -> list[np.ndarray]:
    """Split rows into `count` parts of whole groups, sizes as even as they can be; fewer only if groups are fewer.
    `groups` has one id per row (the `uid`). With `shuffle` the groups' order is drawn from (seed, epoch); otherwise it
    is the order of first appearance. Rows keep their order inside a group."""
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
    """How much one forward pass may hold: a number of sequences or one of tokens; with neither, the whole batch."""

    max_sequences: int | None = None
    max_tokens: int | None = None

    @classmethod
    def choose(cls, by_tokens: bool, tokens: int, sequences: int | None) -> "MicroBatch":
        """A bound on tokens (`use_dynamic_bsz`), or one on sequences."""
        return cls(max_tokens=tokens) if by_tokens else cls(max_sequences=sequences)

    def halved(self, lengths: Sequence[int]) -> "MicroBatch | None":
        """Passes of half the size for rows of these lengths; None where each has one sequence already."""
        if max(map(len, self.cut(lengths)), default=0) <= 1:
            return None
        if self.max_tokens is not None:
            return MicroBatch(max_tokens=max(min(self.max_tokens, sum(lengths)) // 2, 1))
        return MicroBatch(max_sequences=min(self.max_sequences or len(lengths), len(lengths)) // 2)

    def __str__(self) -> str:
        if self.max_tokens is not None:
            return f"{self.max_tokens} tokens"
        return f"{self.max_sequences} sequences" if self.max_sequences else "the whole batch"

    def cut(self, lengths: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Split rows into parts of at most `max_tokens` tokens, or of at most `max_sequences` rows in their order. A
        pass packs its sequences without padding, so a part costs what its sequences cost together. In each, rows keep
        their order. Within a budget of tokens the parts are few, even in cost, and the heaviest comes first; only a
        single sequence longer than the budget exceeds it, alone in its part."""
        if self.max_tokens is not None:
            sizes = np.asarray(lengths, dtype=np.int64).tolist()
            return [np.array(part, dtype=np.int64) for part in micro_batches(sizes, self.max_tokens)]
        most = self.max_sequences or max(len(lengths), 1)
        return [np.arange(i, min(i + most, len(lengths))) for i in range(0, len(lengths), most)]


class ForwardPass(NamedTuple):
    """One forward pass: its rows, and whether they count. Rows that do not only keep step with other processes."""

    rows: np.ndarray
    counts: bool = True


def passes(lengths: Sequence[int], micro: MicroBatch, mesh: Mesh | None = None) -> list[ForwardPass]:
    """The passes of this process over a batch that all processes of the mesh have whole. Each row counts in one
    process, or in all that share its sequence. Weights are gathered in step, so all processes make as many passes: one
    that has none left repeats the shortest row of the batch, which then counts for nothing."""
    if mesh is None:
        return [ForwardPass(rows) for rows in micro.cut(lengths)]
    if micro.max_tokens is not None:  # of one process, which has a slice of each sequence
        micro = MicroBatch(max_tokens=micro.max_tokens * mesh.ulysses_size)
    sizes = np.asarray(lengths, dtype=np.int64)
    cuts = [[share[part] for part in micro.cut(sizes[share])] for share in deal(lengths, mesh.data_size, mesh.even)]
    own, most = cuts[mesh.data_rank], max(map(len, cuts))
    idle = [ForwardPass(np.array([int(sizes.argmin())]), counts=False) for _ in range(most - len(own))]
    return [*map(ForwardPass, own), *idle]


def deal(lengths: Sequence[int], parts: int, even: bool) -> list[np.ndarray]:
    """The rows of each of `parts` processes: of even cost, or neighbours of even number; empty where rows are fewer."""
    count = min(parts, len(lengths))
    if even and count:
        shares = [np.array(part, dtype=np.int64) for part in balanced_partitions([*map(workload, lengths)], count)]
    else:
        shares = np.array_split(np.arange(len(lengths)), max(count, 1))
    return shares + [np.array([], dtype=np.int64)] * (parts - len(shares))
