"""What a rule may look at: the last values of the metrics that rules watch, and their whole course in a few points.

Memory does not grow with the run: of each metric the last 64 values are kept, and at most 256 means of equally many
steps each.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from burnish.literal import one_line

RECENT, WHOLE, NAMES = 64, 256, 256  # values of a metric, points of its course, metrics
SCORE, LOSS = "critic/score/mean", "train/loss"
SHOWN = 60  # characters at the end of a response


@dataclass
class Curve:
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    points: list[tuple[int, float]] = field(default_factory=list)  # (last step, mean) of `width` values each
    width: int = 1
    _open: list[float] = field(default_factory=list)  # values of a point that is not full

    def add(self, step: int, value: float) -> None:
        self.recent.append(value)
        self._open.append(value)
        if len(self._open) < self.width:
            return
        self.points.append((step, sum(self._open) / self.width))
        self._open.clear()
        if len(self.points) == WHOLE:  # half as many, twice as wide
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [(after[0], (before[1] + after[1]) / 2) for before, after in pairs]
            self.width *= 2


class History:
    """`keys`: the run's configuration, nested. `read_samples`: up to so many rows of the newest rollouts file."""

    def __init__(
        self,
        keys: Mapping[str, Any],
        watched: Iterable[str],
        read_samples: Callable[[int], list[dict[str, Any]]] = lambda count: [],
    ):
        self.keys, self.step, self.samples = keys, 0, read_samples
        watched = set(watched)
        self._watched, self._prefixes = watched, tuple(name for name in watched if name.endswith("/"))
        self.best: int | None = None  # step of the best checkpoint
        self._validated: list[float] = []
        self._curves: dict[str, Curve] = {}

    def add(self, metrics: Mapping[str, float], step: int) -> None:
        self.step = step
        self._validated = [v for name, v in metrics.items() if name.startswith("val-core/") and "/mean@" in name]
        for name, value in metrics.items():
            is_watched = name in self._watched or name.startswith(self._prefixes)
            if is_watched and math.isfinite(value) and (name in self._curves or len(self._curves) < NAMES):
                self._curves.setdefault(name, Curve()).add(step, float(value))

    def quality(self) -> tuple[bool, float] | None:
        """How good the policy is after this step: whether it was validated, and the mean of the main results, or else
        the mean reward of the last steps."""
        if self._validated:
            return True, mean(self._validated)
        scores = self.recent(SCORE, 1) and self.recent(SCORE, min(self.count(SCORE), 5))
        return (False, mean(scores)) if scores else None

    def count(self, name: str) -> int:
        """How many values `recent` can give."""
        return len(self._curves[name].recent) if name in self._curves else 0

    def recent(self, name: str, count: int) -> list[float]:
        """The last `count` values; none where there are fewer."""
        values = self._curves[name].recent if name in self._curves else ()
        return list(values)[-count:] if len(values) >= count else []

    def points(self, name: str) -> list[tuple[int, float]]:
        """Its whole course, as (step, mean up to this step)."""
        return self._curves[name].points if name in self._curves else []

    def highest(self, name: str) -> float | None:
        """Of its whole course; None where it was never reported."""
        return max((value for _, value in self.points(name)), default=None)

    def scored_samples(self, count: int) -> list[str]:
        """Of the newest rollouts: what the reward function saw and returned, a line each."""
        rows = self.samples(count)
        return [
            f"{_end(row.get('response'))} (ground truth {_end(row.get('ground_truth'))}) → {row.get('score')}"
            for row in rows
        ]

    @property
    def optimiser(self) -> str:
        """The section of the policy's optimiser, or of the one model that `burnish sft` and `burnish rm` train."""
        return "optim" if self.key("actor_rollout_ref") is None else "actor_rollout_ref.actor.optim"

    def key(self, name: str, default: Any = None) -> Any:
        value: Any = self.keys
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return default if value is None else value


def _end(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return one_line(f"'{text if len(text) <= SHOWN else '…' + text[-SHOWN:]}'")


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def noise(values: Sequence[float]) -> float:
    """The standard deviation from one value to the next, whatever their trend, and a few jumps."""
    apart = sorted(abs(after - before) for before, after in pairwise(values))
    return 1.4826 / math.sqrt(2) * apart[len(apart) // 2] if apart else 0.0


@dataclass(frozen=True)
class Fall:
    """From a peak: means of a few points."""

    step: int  # the last of the peak's
    first: float
    top: float
    now: float

    @property
    def is_whole(self) -> bool:
        """Back to where it began, or below."""
        return self.now <= self.first + 0.2 * max(self.top - self.first, 0.0)


def fall(points: Sequence[tuple[int, float]], window: int = 5) -> Fall | None:
    """Whether values rose, and fell by more than their noise and a quarter of what they are or rose by."""
    if len(points) < 3 * window:
        return None
    values = [value for _, value in points]
    smooth = [mean(values[i - window : i]) for i in range(window, len(values) + 1)]
    peak = max(range(len(smooth)), key=smooth.__getitem__)
    top, now = smooth[peak], smooth[-1]
    unsure = 4 * noise(values) * math.sqrt(2 / window)
    if top - now <= unsure or top - now < 0.25 * max(abs(top), top - min(smooth)) or len(smooth) - 1 - peak < window:
        return None
    return Fall(points[peak + window - 1][0], smooth[0], top, now)


def has_moved(values: Sequence[float]) -> bool:
    """Whether the last values differ from the first by more than noise, or there is a trend."""
    first, last = values[:3], values[-10:]
    apart = abs(mean(last) - mean(first))
    return apart > 4 * noise(values) * math.sqrt(1 / 3 + 1 / 10) or abs(trend(values)) > 3


def trend(values: Sequence[float]) -> float:
    """How sure it is that they rise (positive) or fall: the slope in its standard errors; 0 where it is flat."""
    n = len(values)
    if n < 8:
        return 0.0
    middle, level = (n - 1) / 2, mean(values)
    spread = sum((i - middle) ** 2 for i in range(n))
    slope = sum((i - middle) * (value - level) for i, value in enumerate(values)) / spread
    rest = sum((value - level - slope * (i - middle)) ** 2 for i, value in enumerate(values))
    error = math.sqrt(rest / (n - 2) / spread)
    scale = max(map(abs, values)) or 1.0
    return slope / error if error > 1e-9 * scale else 0.0 if abs(slope) * n < 1e-9 * scale else math.copysign(99, slope)
