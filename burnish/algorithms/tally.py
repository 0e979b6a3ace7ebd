"""Metrics of a micro-batch that add up to exactly those of the mini-batch, whichever way it was cut.

Their tensors stay on the device, detached, until `merge` adds micro-batches up and reads the numbers once. A statistic
of nothing is 0.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from burnish.algorithms.masked import masked_mean, masked_sum

Part = torch.Tensor | float
Parts = tuple[Part, ...]


def _add(one: Parts, other: Parts) -> Parts:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _join_spreads(one: Any, other: Any) -> Parts:
    """(count, mean, squared distances from it) of two parts as if they had been one (Chan, Golub and LeVeque 1979),
    which loses no digits to a large mean."""
    (count, mean, squares), (more, other_mean, other_squares) = one, other
    total, apart = count + more, other_mean - mean
    share = more / total.clamp(min=1)
    return total, mean + apart * share, squares + other_squares + apart**2 * count * share


# How two parts are joined, and what the joined parts, as plain numbers, come to.
KINDS: dict[str, tuple[Callable[..., Parts], Callable[..., float]]] = {
    "sum": (_add, lambda total: total),
    "mean": (_add, lambda total, weight: total / max(weight, 1.0)),
    "largest": (lambda a, b: (torch.maximum(a[0], b[0]),), lambda top: 0.0 if top == -math.inf else top),
    "smallest": (lambda a, b: (torch.minimum(a[0], b[0]),), lambda low: 0.0 if low == math.inf else low),
    "spread": (_join_spreads, lambda count, mean, squares: math.sqrt(squares / max(count, 1.0))),
    "sample spread": (_join_spreads, lambda count, mean, squares: math.sqrt(squares / max(count - 1, 1.0))),
    "effective share": (_add, lambda total, squares, n: total**2 / (n * squares) if squares > 0 else 0.0),
}


@dataclass(frozen=True)
class Tally:
    """A part of a statistic of the given kind, in `KINDS`."""

    kind: str
    parts: Parts

    def __add__(self, other: "Tally") -> "Tally":
        return replace(self, parts=KINDS[self.kind][0](self.parts, other.parts))

    @property
    def value(self) -> float:
        return KINDS[self.kind][1](*map(float, self.parts))


Metrics = dict[str, Tally]


def part_of_sum(total: torch.Tensor) -> Tally:
    """A part of a total, such as a loss that is already divided by the mini-batch's counts."""
    return Tally("sum", (total.detach(),))


def part_of_mean(total: Part, weight: Part) -> Tally:
    """A part of a mean: the sum of what was counted, and how much was counted."""
    return Tally("mean", (total, weight))


def mean_over_tokens(values: torch.Tensor, mask: torch.Tensor) -> Tally:
    """The mean inside the mask, of tokens (B, R) or of rows (B,); booleans as 0 and 1."""
    return part_of_mean(masked_sum(values.detach(), mask), mask.bool().sum())


def largest(values: torch.Tensor, mask: torch.Tensor) -> Tally:
    """The largest value inside the mask, of tokens (B, R) or of rows (B,)."""
    return Tally("largest", (_top(values, mask),))


def smallest(values: torch.Tensor, mask: torch.Tensor) -> Tally:
    return Tally("smallest", (-_top(-values, mask),))


def _top(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    inside = values.detach().masked_fill(~mask.bool(), -math.inf).flatten()
    return F.pad(inside, (0, 1), value=-math.inf).max()  # padded: a part may have no rows at all


def spread(values: torch.Tensor, mask: torch.Tensor, sample: bool = True) -> Tally:
    """The standard deviation inside the mask, of a sample (n - 1) or of all there is (n); worked out in float64."""
    wide = values.detach().double()
    mean = masked_mean(wide, mask)
    count = mask.bool().sum(dtype=torch.float64)  # integers would be divided in float32
    return Tally("sample spread" if sample else "spread", (count, mean, masked_sum((wide - mean) ** 2, mask)))


def effective_share(weights: torch.Tensor, mask: torch.Tensor) -> Tally:
    """The effective sample size of the weights inside the mask as a share of their number: (Σw)² / (n Σw²).

    1 for n equal weights, 1/n where a single one is not 0, 0 where all are.
    """
    wide = weights.detach().double()
    return Tally("effective share", (masked_sum(wide, mask), masked_sum(wide**2, mask), mask.bool().sum()))


def merge(parts: Iterable[Mapping[str, Tally]]) -> dict[str, float]:
    """The metrics of the whole mini-batch; tensors come from the device at once, in float64, which holds them all."""
    merged: Metrics = {}
    for part in parts:
        for name, metric in part.items():
            merged[name] = merged[name] + metric if name in merged else metric
    tensors = [part for metric in merged.values() for part in metric.parts if isinstance(part, torch.Tensor)]
    if tensors:
        device = tensors[0].device
        wide = torch.stack([part.detach().reshape(()).to(device, torch.float64) for part in tensors])
        numbers = iter(wide.tolist())
        for name, metric in merged.items():
            plain = tuple(next(numbers) if isinstance(part, torch.Tensor) else part for part in metric.parts)
            merged[name] = replace(metric, parts=plain)
    return {name: metric.value for name, metric in merged.items()}


def on_cpu(metrics: Mapping[str, Tally]) -> Metrics:
    """The same tallies with their tensors in host memory, to be sent to other processes."""
    return {
        name: replace(metric, parts=tuple(p.cpu() if isinstance(p, torch.Tensor) else p for p in metric.parts))
        for name, metric in metrics.items()
    }
