"""Which row comes at which position of the prompt stream: a pure function of (seed, position).

So a run resumes from its position alone. Rows of an epoch are sorted by a hash of (seed, epoch, row). With weights, an
epoch has as many positions as its sources have rows, split exactly (largest remainder), and no row of a source comes
again before all have. docs/data.md describes curricula and custom samplers.
"""

import itertools
import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.config.data import DataConfig
from burnish.data.dataset import Dataset, construct
from burnish.data.files import largest_remainder
from burnish.errors import ConfigError, DataError
from burnish.user_code import load_class

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    rows: Sequence[int]
    epochs: int = 1


def make_order(dataset: Dataset, config: DataConfig) -> "Order | CustomOrder":
    if config.sampler.class_path:
        keys = ("data.sampler.class_path", "data.sampler.class_name")
        cls = load_class(config.sampler.class_path, config.sampler.class_name, *keys)
        return CustomOrder(cls, dataset, config)
    stages = read_stages(dataset, config) if config.curriculum.key or config.curriculum.stages else None
    return Order(dataset.source_sizes, config.seed, config.shuffle, config.dataset_weights, stages)


class Order:
    """The endless stream of row numbers, which run through all sources. `sizes` are the rows of each, and `weights` its
    share in the draws (None: every row once per epoch). Without `stages`, a curriculum, all rows are one."""

    def __init__(
        self,
        sizes: Sequence[int],
        seed: int,
        shuffle: bool,
        weights: Sequence[float] | None = None,
        stages: Sequence[Stage] | None = None,
    ):
        self.seed, self.shuffle = seed, shuffle
        if weights is not None and len(weights) != len(sizes):  # a user's dataset says how many sources it has
            given = f"{len(weights)} weights for {len(sizes)} files"
            raise ConfigError(f"data.dataset_weights has {given}; give one for each")
        for i, (weight, size) in enumerate(zip(weights or (), sizes, strict=False)):
            if weight and not size and stages is None:
                what = f"gives file {i} the weight {weight}"
                raise DataError(f"data.dataset_weights {what}, but none of its rows is left")
        stages = stages or [Stage(range(sum(sizes)))]
        self._pools = [_pools(np.asarray(stage.rows, dtype=np.int64), sizes, weights) for stage in stages]
        self._lengths = [sum(count for _, count in pools) for pools in self._pools]
        if not all(self._lengths):
            raise DataError(f"there are no rows to draw from (rows per source: {list(sizes)})")
        # Of each stage: its first epoch, and the first position of that.
        self._first_epochs = [0, *itertools.accumulate(stage.epochs for stage in stages[:-1])]
        positions = (stage.epochs * length for stage, length in zip(stages[:-1], self._lengths, strict=False))
        self._starts = [0, *itertools.accumulate(positions)]
        self._cache: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        """Positions in the first epoch; without a curriculum, in every epoch."""
        return self._lengths[0]

    def index(self, position: int) -> int:
        epoch = self.epoch(position)
        if epoch not in self._cache:
            self._cache = {epoch: self._layout(epoch)}
        return int(self._cache[epoch][position - self.start(epoch)])

    def epoch(self, position: int) -> int:
        if position < 0:
            raise ValueError(f"position {position} is negative")
        stage = bisect_right(self._starts, position) - 1
        return self._first_epochs[stage] + (position - self._starts[stage]) // self._lengths[stage]

    def start(self, epoch: int) -> int:
        """The first position of an epoch; `start(k)` is also the number of positions in the first k epochs."""
        stage = bisect_right(self._first_epochs, epoch) - 1
        return self._starts[stage] + (epoch - self._first_epochs[stage]) * self._lengths[stage]

    def _layout(self, epoch: int) -> np.ndarray:
        stage = bisect_right(self._first_epochs, epoch) - 1
        within = epoch - self._first_epochs[stage]
        rows, keys = [], []
        for number, (pool, count) in enumerate(self._pools[stage]):
            draws = range(within * count, (within + 1) * count)
            rows.append(self._draw(pool, draws, (stage, number)))
            # Draw j of n falls into the j-th n-th part of the epoch: at random in it, or in its middle.
            place = (self.seed, 1, stage, number, within)
            jitter = (_hashes(count, *place) >> np.uint64(11)).astype(np.float64) / 2.0**53 if self.shuffle else 0.5
            keys.append((np.arange(count) + jitter) / max(count, 1))
        if len(rows) == 1:
            return rows[0]
        return np.concatenate(rows)[np.argsort(np.concatenate(keys), kind="stable")]

    def _draw(self, pool: np.ndarray, draws: range, place: tuple[int, int]) -> np.ndarray:
        """The rows of these draws from a pool that is traversed repeatedly, each time in a new order."""
        if not self.shuffle:
            return pool[np.arange(draws.start, draws.stop) % len(pool)]
        parts = []
        for cycle in range(draws.start // len(pool), -(-draws.stop // len(pool))):
            permutation = np.argsort(_hashes(len(pool), self.seed, 0, *place, cycle), kind="stable")
            first = cycle * len(pool)
            parts.append(pool[permutation[max(draws.start - first, 0) : draws.stop - first]])
        return np.concatenate(parts) if parts else pool[:0]


def read_stages(dataset: Dataset, config: DataConfig) -> list[Stage]:
    key, plans = str(config.curriculum.key), []
    for i, stage in enumerate(config.curriculum.stages or ()):
        name, plan = f"data.curriculum.stages[{i}]", stage if isinstance(stage, dict) else {"values": stage}
        if "values" not in plan or set(plan) - {"values", "epochs"}:
            raise ConfigError(f"{name}={plan!r}: expected {{values: [...], epochs: k}}")
        values, epochs = plan["values"], plan.get("epochs", 1)
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
            raise ConfigError(f"{name}.epochs={epochs!r}: expected a whole number of at least 1")
        plans.append((list(values) if isinstance(values, list | tuple) else [values], epochs))
    found = [dataset.value(i, key) for i in range(len(dataset))]
    if (missing := next((i for i, value in enumerate(found) if value is None), None)) is not None:
        raise DataError(f"{dataset.where(missing)}: field '{key}' (data.curriculum.key) is missing or null")
    stages = []
    for i, (values, epochs) in enumerate(plans):
        rows = [row for row, value in enumerate(found) if value in values]
        if not rows:
            there = ", ".join(sorted({repr(value) for value in found})[:20])
            raise ConfigError(f"data.curriculum.stages[{i}]: no row has '{key}' in {values}; the values are {there}")
        stages.append(Stage(rows, epochs))
    if unused := sum(not any(value in values for values, _ in plans) for value in found):
        log.info("%d of %d rows are in no stage of data.curriculum and never drawn", unused, len(found))
    return stages


def _pools(rows: np.ndarray, sizes: Sequence[int], weights: Sequence[float] | None) -> list[tuple[np.ndarray, int]]:
    """The separately shuffled sets of rows of a stage, each with its draws per epoch."""
    if weights is None:
        return [(rows, len(rows))]
    ends = np.cumsum(sizes)
    sources = [rows[(rows >= end - size) & (rows < end)] for size, end in zip(sizes, ends, strict=True)]
    present = [(source, weight) for source, weight in zip(sources, weights, strict=True) if len(source) and weight]
    if not present:
        return []
    counts = largest_remainder([weight for _, weight in present], sum(len(source) for source, _ in present))
    return [(source, count) for (source, _), count in zip(present, counts, strict=True)]


def _hashes(count: int, *place: int) -> np.ndarray:
    """A 64-bit hash of (place, i) for each i: splitmix64, so that no library's generator decides the order."""
    state = np.uint64(0)
    with np.errstate(over="ignore"):
        for number in place:
            state = _mix(state + np.uint64(number % 2**64))
        return _mix(state + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _mix(x: Any) -> Any:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class CustomOrder:
    def __init__(self, cls: type, dataset: Any, config: DataConfig):
        self.name = cls.__name__
        if not hasattr(cls, "__len__") or not (hasattr(cls, "index") or hasattr(cls, "__iter__")):
            raise ConfigError(f"data.sampler: {self.name} needs __len__, and either index(position) or __iter__")
        self._sampler = construct(cls, "data.sampler", (dataset, config), {})
        self._rows = len(dataset)
        self._epoch_length: int = len(self._sampler)
        if self._epoch_length < 1:
            raise ConfigError(f"data.sampler: {self.name} has an epoch of {self._epoch_length} positions")
        self._positional = hasattr(cls, "index")
        self._epochs: dict[int, list[int]] = {}
        if not self._positional and self._iterate(0) != self._iterate(0):
            raise ConfigError(
                f"data.sampler: {self.name} gives another order each time it is iterated, so a run could not be "
                "resumed. Derive the order from a seed and set_epoch(epoch), or define index(position)"
            )

    def __len__(self) -> int:
        return self._epoch_length

    def epoch(self, position: int) -> int:
        return position // self._epoch_length

    def start(self, epoch: int) -> int:
        return epoch * self._epoch_length

    def index(self, position: int) -> int:
        if self._positional:
            row = self._sampler.index(position)
        else:
            epoch, offset = divmod(position, self._epoch_length)
            if epoch not in self._epochs:
                self._epochs = {epoch: self._iterate(epoch)}
            row = self._epochs[epoch][offset]
        if not 0 <= int(row) < self._rows:
            there = f"rows are 0 to {self._rows - 1}"
            raise ConfigError(f"data.sampler: {self.name} gives row {row} at position {position}; {there}")
        return int(row)

    def _iterate(self, epoch: int) -> list[int]:
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
        rows = list(itertools.islice(iter(self._sampler), self._epoch_length))
        if len(rows) < self._epoch_length:
            gives = f"has the length {self._epoch_length} but gives {len(rows)} rows per epoch"
            raise ConfigError(f"data.sampler: {self.name} {gives}")
        return rows
