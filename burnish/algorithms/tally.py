"""Metrics of a micro-batch that add up to exactly those of the mini-batch, whichever way it was cut.

A loss hands back a dictionary of tallies, most of them a `Sum` or a `Mean`. Their tensors stay on the device, detached,
until `merge` adds the micro-batches up and reads the numbers once. A statistic of nothing is 0.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from burnish.algorithms.masked import masked_mean, masked_sum


@dataclass(frozen=True)
class Sum:
    """A part of a total, such as a loss that is already divided by the mini-batch's counts."""

    total: torch.Tensor

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total)

    @property
    def value(self) -> float:
        return float(self.total)


@dataclass(frozen=True)
class Mean:
    """A part of a mean: the sum of what was counted, and how much was counted."""

    total: torch.Tensor | float
    weight: torch.Tensor | float

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.weight + other.weight)

    @property
    def value(self) -> float:
        return float(self.total) / max(float(self.weight), 1.0)


@dataclass(frozen=True)
class Largest:
    """The largest value of a part, -inf where it has none."""

    top: torch.Tensor

    def __add__(self, other: "Largest") -> "Largest":
        return Largest(torch.maximum(self.top, other.top))

    @property
    def value(self) -> float:
        top = float(self.top)
        return 0.0 if top == -math.inf else top


@dataclass(frozen=True)
class Smallest:
    """The smallest value of a part, inf where it has none."""

    bottom: torch.Tensor

    def __add__(self, other: "Smallest") -> "Smallest":
        return Smallest(torch.minimum(self.bottom, other.bottom))

    @property
    def value(self) -> float:
        bottom = float(self.bottom)
        return 0.0 if bottom == math.inf else bottom


@dataclass(frozen=True)
class Spread:
    """A part of a standard deviation: how many values, their mean, and their squared distances from it, summed.

    Two parts are joined as if they had been one (Chan, Golub and LeVeque 1979), which loses no digits to a large mean.
    """

    count: torch.Tensor
    mean: torch.Tensor
    squares: torch.Tensor
    sample: bool  # divide by n - 1, not by n

    def __add__(self, other: "Spread") -> "Spread":
        count, apart = self.count + other.count, other.mean - self.mean
        share = other.count / count.clamp(min=1)
        squares = self.squares + other.squares + apart**2 * self.count * share
        return Spread(count, self.mean + apart * share, squares, self.sample)

    @property
    def value(self) -> float:
        return math.sqrt(float(self.squares) / max(float(self.count) - self.sample, 1.0))


@dataclass(frozen=True)
class EffectiveShare:
    """A part of (Σw)² / (n Σw²): 1 for n equal weights, 1/n where a single one is not 0, 0 where all are."""

    total: torch.Tensor
    squares: torch.Tensor
    count: torch.Tensor

    def __add__(self, other: "EffectiveShare") -> "EffectiveShare":
        return EffectiveShare(self.total + other.total, self.squares + other.squares, self.count + other.count)

    @property
    def value(self) -> float:
        squares = float(self.squares)
        return float(self.total) ** 2 / (float(self.count) * squares) if squares > 0 else 0.0


Tally: TypeAlias = Sum | Mean | Largest | Smallest | Spread | EffectiveShare
Metrics = dict[str, Tally]


def part_of_sum(total: torch.Tensor) -> Sum:
    """A loss as a metric."""
    return Sum(total.detach())


def mean_over_tokens(values: torch.Tensor, mask: torch.Tensor) -> Mean:
    """The mean inside the mask, of tokens (B, R) or of rows (B,); booleans as 0 and 1."""
    return Mean(masked_sum(values.detach(), mask), mask.bool().sum())


def largest(values: torch.Tensor, mask: torch.Tensor) -> Largest:
    """The largest value inside the mask, of tokens (B, R) or of rows (B,)."""
    inside = values.detach().masked_fill(~mask.bool(), -math.inf).flatten()
    return Largest(F.pad(inside, (0, 1), value=-math.inf).max())  # padded: a part may have no rows at all


def smallest(values: torch.Tensor, mask: torch.Tensor) -> Smallest:
    """The smallest value inside the mask."""
    return Smallest(-largest(-values, mask).top)


def spread(values: torch.Tensor, mask: torch.Tensor, sample: bool = True) -> Spread:
    """The standard deviation inside the mask, of a sample (n - 1) or of all there is (n); worked out in float64."""
    wide = values.detach().double()
    mean = masked_mean(wide, mask)
    count = mask.bool().sum(dtype=torch.float64)  # integers would be divided in float32
    return Spread(count, mean, masked_sum((wide - mean) ** 2, mask), sample)


def effective_share(weights: torch.Tensor, mask: torch.Tensor) -> EffectiveShare:
    """The effective sample size of the weights inside the mask, as a share of their number."""
    wide = weights.detach().double()
    return EffectiveShare(masked_sum(wide, mask), masked_sum(wide**2, mask), mask.bool().sum())


def merge(parts: Iterable[Mapping[str, Tally]]) -> dict[str, float]:
    """The metrics of the whole mini-batch from those of its micro-batches."""
    merged: Metrics = {}
    for part in parts:
        for name, metric in part.items():
            merged[name] = merged[name] + metric if name in merged else metric  # type: ignore[operator]
    return {name: metric.value for name, metric in _read(merged).items()}


def on_cpu(metrics: Mapping[str, Tally]) -> Metrics:
    """The same tallies with their tensors in host memory, to be sent to other processes."""
    moved: Metrics = {}
    for name, metric in metrics.items():
        tensors: dict[str, Any] = {field: part.cpu() for field, part in vars(metric).items() if torch.is_tensor(part)}
        moved[name] = replace(metric, **tensors)
    return moved


def _read(metrics: Metrics) -> Metrics:
    """The same tallies of plain numbers: all tensors come from the device at once, in float64, which holds them all."""
    tensors = [part for metric in metrics.values() for part in vars(metric).values() if torch.is_tensor(part)]
    if not tensors:
        return metrics
    device = tensors[0].device
    wide = torch.stack([part.detach().reshape(()).to(device, torch.float64) for part in tensors])
    numbers = iter(wide.tolist())
    return {
        name: replace(metric, **{field: next(numbers) for field, part in vars(metric).items() if torch.is_tensor(part)})
        for name, metric in metrics.items()
    }
