"""The bounds of `algorithm.rollout_correction` (docs/rollout-correction.md), from what a user wrote to numbers.

    rollout_is_threshold     2.0                    weights are cut to 2 (TIS)
                             0.5_2.0                weights outside 0.5..2 become 0 (IcePop)
    rollout_rs_threshold     0.5_2.0,0.01           one for each mask of rollout_rs, or one for all

A k1 mask takes lower_upper, or a single u that stands for 1/u..u, as ratios of probabilities; k2 and k3 take one upper
bound. Bounds that leave out 1, where both policies agree, are refused. YAML takes an underscore between digits for a
separator: 0.5_2 in a recipe arrives as 0.52, which is refused, but 1_2.0 as the cap 12, so a band is quoted there.
"""

import math
from dataclasses import dataclass
from typing import Any

from burnish.config.algorithm import RolloutCorrectionConfig
from burnish.config.nearest import nearest
from burnish.config.values import show
from burnish.errors import ConfigError

SECTION = "algorithm.rollout_correction"
WRITTEN = 'write lower_upper as in 0.5_2.0 (in a recipe with quotes, "0.5_2.0")'
# The largest of a signed k1 would bound one side only, so there is no seq_max_k1.
REJECTIONS = (
    *(f"{level}_{kind}" for level in ("token", "seq_sum", "seq_mean") for kind in ("k1", "k2", "k3")),
    "seq_max_k2",
    "seq_max_k3",
)


@dataclass(frozen=True)
class WeightBounds:
    """A cap on importance weights, or the band outside of which they are 0."""

    lower: float | None  # None: a cap
    upper: float


@dataclass(frozen=True)
class Rejection:
    """One rejection mask: which statistic, and the bounds it must lie in. The bounds are those of the statistic itself,
    so for k1 the logarithms of what the user wrote; k2 and k3 have 0 as their lower bound."""

    name: str  # as in `rollout_rs`: seq_mean_k3
    level: str  # token, seq_sum, seq_mean, seq_max
    kind: str  # k1, k2, k3
    lower: float
    upper: float


def weight_bounds(config: RolloutCorrectionConfig) -> WeightBounds:
    """The cap or band of `rollout_is_threshold`."""
    written = f"{SECTION}.rollout_is_threshold={show(config.rollout_is_threshold)}"
    numbers = _numbers(written, show(config.rollout_is_threshold))
    if len(numbers) == 2:
        return WeightBounds(*_in_order(written, *numbers))
    (cap,) = numbers
    if cap < 1:
        why = "a cap below 1 would cut the weight of tokens both policies agree on"
        raise ConfigError(f"{written}: {why}; for a band {WRITTEN}")
    return WeightBounds(None, cap)


def rejections(config: RolloutCorrectionConfig) -> tuple[Rejection, ...]:
    """The masks of `rollout_rs` with their bounds; empty without any."""
    if not config.rollout_rs:
        return ()
    options = f"{SECTION}.rollout_rs={show(config.rollout_rs)}"
    names = _list(config.rollout_rs)
    for name in names:
        if name not in REJECTIONS:
            hint = f"did you mean {near!r}? " if (near := nearest(name, REJECTIONS)) else ""
            raise ConfigError(f"{options}: there is no {name!r}; {hint}There is {', '.join(REJECTIONS)}")
    if config.rollout_rs_threshold is None:
        raise ConfigError(f"{options}: set {SECTION}.rollout_rs_threshold with it, one bound for all or one for each")
    written = f"{SECTION}.rollout_rs_threshold={show(config.rollout_rs_threshold)}"
    bounds = _list(config.rollout_rs_threshold)
    if len(bounds) not in (1, len(names)):
        counts = f"{len(bounds)} bounds for the {len(names)} masks of rollout_rs"
        raise ConfigError(f"{written}: {counts}; give one for all or one each")
    bounds = bounds * len(names) if len(bounds) == 1 else bounds
    made: dict[str, Rejection] = {}
    for name, text in zip(names, bounds, strict=True):
        rejection = _rejection(written, name, text)
        if made.setdefault(name, rejection) != rejection:
            raise ConfigError(f"{written}: two bounds for {name}; keep one")
    return tuple(made.values())


def _rejection(written: str, name: str, text: str) -> Rejection:
    level, _, kind = name.rpartition("_")
    numbers = _numbers(written, text)
    if kind != "k1":
        if len(numbers) == 2:
            raise ConfigError(f"{written}: {name} is never negative and takes one upper bound, as in {numbers[1]:g}")
        return Rejection(name, level, kind, 0.0, numbers[0])
    if len(numbers) == 1:
        if numbers[0] <= 1:
            raise ConfigError(
                f"{written}: a single bound u of {name} means 1/u..u and must be greater than 1; or {WRITTEN}"
            )
        numbers = [1 / numbers[0], numbers[0]]
    lower, upper = _in_order(written, *numbers)
    return Rejection(name, level, kind, math.log(lower), math.log(upper))


def _list(value: Any) -> list[str]:
    """What is joined by commas, or already a list, one by one."""
    items = value if isinstance(value, list) else show(value).split(",")
    return [show(item).strip() for item in items]


def _numbers(written: str, text: str) -> list[float]:
    """`u` or `lower_upper`, each more than 0; `written` is key=value, for complaints."""
    try:
        numbers = [float(part) for part in text.split("_")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise ConfigError(f"{written}: {text!r} is neither a number nor lower_upper, as in 0.5_2.0")
    if not all(0 < number < math.inf for number in numbers):
        raise ConfigError(f"{written}: bounds are finite and more than 0")
    return numbers


def _in_order(written: str, lower: float, upper: float) -> tuple[float, float]:
    if lower >= upper:
        raise ConfigError(f"{written}: the lower bound {lower:g} is not below the upper bound {upper:g}; {WRITTEN}")
    if not lower <= 1 <= upper:
        raise ConfigError(f"{written}: {lower:g} to {upper:g} leaves out 1, where both policies agree; {WRITTEN}")
    return lower, upper
