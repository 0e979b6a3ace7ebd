"""Metrics of a micro-batch that add up to exactly those of the mini-batch, whichever way it was cut.

A loss hands back a dictionary of `Sum` and `Mean`. Their tensors stay on the device, detached, until `merge` adds the
micro-batches up and reads the numbers once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from burnish.algorithms.masked import masked_sum


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


Metrics = dict[str, Sum | Mean]


def part_of_sum(total: torch.Tensor) -> Sum:
    """A loss as a metric."""
    return Sum(total.detach())


def mean_over_tokens(values: torch.Tensor, mask: torch.Tensor) -> Mean:
    """The mean over the tokens inside the mask; values (B, R), booleans as 0 and 1."""
    return Mean(masked_sum(values.detach(), mask), mask.bool().sum())


def merge(parts: Iterable[Mapping[str, Sum | Mean]]) -> dict[str, float]:
    """The metrics of the whole mini-batch from those of its micro-batches."""
    merged: Metrics = {}
    for part in parts:
        for name, metric in part.items():
            merged[name] = merged[name] + metric if name in merged else metric  # type: ignore[operator]
    return {name: metric.value for name, metric in merged.items()}
