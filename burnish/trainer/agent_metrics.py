"""What agent loops report of their trajectories, as figures of a step: the mean of each, and the extremes of counts.

A loop names its metrics itself; one without a group of its own (`group/name`) is filed under `agent`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.rewards.contract import unboxed

COUNTED_ELSEWHERE = ("num_tool_calls",)


def agent_metrics(trajectories: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of each metric over the trajectories that have it; `name` is a mean, of whole numbers `name/mean`."""
    values: dict[str, list[float]] = {}
    for metrics in trajectories:
        for name, given in metrics.items():
            value = unboxed(given)
            if name not in COUNTED_ELSEWHERE and isinstance(value, int | float):
                values.setdefault(name if "/" in name else f"agent/{name}", []).append(value)
    found: dict[str, float] = {}
    for name, numbers in values.items():
        mean = sum(numbers) / len(numbers)
        if all(isinstance(value, int) for value in numbers):
            found |= {f"{name}/mean": mean, f"{name}/max": float(max(numbers)), f"{name}/min": float(min(numbers))}
        else:
            found[name] = mean
    return found
