"""Runs next to each other: the keys in which they differ, and their final values with the spread over seeds.

Runs whose keys differ only in seeds and names are one group. The final value of a run is the mean of a metric's last
values, a tenth of them. Two groups of at least two runs each are compared by Welch's t-test, metric by metric, without
a correction for their number.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from burnish.errors import ConfigError
from burnish.literal import one_line
from burnish.tracking.jsonl import read_metrics
from burnish.tracking.run_folder import read_config
from burnish.tracking.run_status import find_runs

ALONE = (
    "seed",
    "experiment_name",
    "project_name",
    "default_local_dir",
    "rollout_data_dir",
    "validation_data_dir",
    "logger",
    "val_only",
    "resume_mode",
)
SHARE = 0.1  # of the values of a metric, its last ones: the final value
LEVEL = 0.05
SHOWN = 60  # characters of a value


@dataclass(frozen=True)
class RunGroup:
    """Runs of the same keys, apart from their seeds and names."""

    name: str
    folders: list[str]
    keys: Mapping[str, Any]
    finals: Mapping[str, list[float]]  # metric → the final value of each run that has it

    def mean_and_spread(self, metric: str) -> str:
        values = self.finals.get(metric, [])
        if not values:
            return "-"
        return f"{fmean(values):.4g}" + (f" ± {math.sqrt(variance(values)):.2g}" if len(values) > 1 else "")


def read_groups(places: Sequence[str]) -> list[RunGroup]:
    """The runs in these folders, or below them, in groups; ConfigError where one has no run with metrics."""
    found: dict[str, tuple[Mapping[str, Any], dict[str, float]]] = {}
    for place in places:
        runs = {one.folder: final_values(one.folder) for one in find_runs(place) if one.logged_s is not None}
        if not runs:
            raise ConfigError(f"{place}: no run with metrics is there. Name a folder in trainer.default_local_dir")
        found |= {folder: (_flat(read_config(Path(folder))), finals) for folder, finals in sorted(runs.items())}
    groups: list[RunGroup] = []
    for folder, (keys, finals) in found.items():
        group = next((one for one in groups if keys and one.keys == keys), None)
        if group is None:
            group = RunGroup(folder, [], keys, {})
            groups.append(group)
        group.folders.append(folder)
        for metric, value in finals.items():
            group.finals.setdefault(metric, []).append(value)  # type: ignore[attr-defined]
    return groups


def final_values(folder: str | Path) -> dict[str, float]:
    columns: dict[str, list[float]] = {}
    for record in read_metrics(Path(folder).expanduser()):
        for name, value in record.items():
            if name != "step" and math.isfinite(value):
                columns.setdefault(name, []).append(value)
    return {name: fmean(values[-max(1, round(len(values) * SHARE)) :]) for name, values in columns.items()}


def different_keys(groups: Sequence[RunGroup]) -> dict[str, list[Any]]:
    names = sorted({name for group in groups for name in group.keys})
    rows = {name: [group.keys.get(name) for group in groups] for name in names}
    return {name: row for name, row in rows.items() if any(value != row[0] for value in row)}


def p_value(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Welch's t-test of two means, two-sided; None with fewer than two values on a side."""
    if min(len(a), len(b)) < 2:
        return None
    of_a, of_b = variance(a) / len(a), variance(b) / len(b)
    gap = abs(fmean(a) - fmean(b))
    if of_a + of_b == 0:
        return 0.0 if gap else 1.0
    freedom = (of_a + of_b) ** 2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
    # Student's t up to `gap`, by Simpson's rule over the angle: its density is a power of the cosine there.
    angle, steps = math.atan(gap / math.sqrt(of_a + of_b) / math.sqrt(freedom)), 2000
    heights = [math.cos(angle * i / steps) ** (freedom - 1) * (4 if i % 2 else 2) for i in range(1, steps)]
    area = (1 + math.cos(angle) ** (freedom - 1) + sum(heights)) * angle / steps / 3
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return min(1.0, max(0.0, 1 - 2 * scale * area))


def as_text(groups: Sequence[RunGroup], metrics: Sequence[str]) -> str:
    """What `burnish compare` prints."""
    letters = [chr(ord("A") + i) if i < 26 else f"R{i}" for i in range(len(groups))]
    lines = []
    for letter, group in zip(letters, groups, strict=True):
        more = f" and {len(group.folders) - 1} more with other seeds" if len(group.folders) > 1 else ""
        lines.append(f"{letter}  {one_line(group.name)}{more}")
    differing = different_keys(groups)
    lines += ["", "keys that differ" if differing else "no keys differ but seeds and names"]
    if differing:
        lines += _columns([["", *letters], *([name, *map(_cut, row)] for name, row in differing.items())])
    lines += ["", "final values (mean of the last tenth; ± is the standard deviation over runs)"]
    repeated = [number for number, group in enumerate(groups) if len(group.folders) > 1]
    pairs = list(combinations(repeated, 2))
    heads = [f"{letters[a]}-{letters[b]}" for a, b in pairs]
    table = [["", *letters, *heads]]
    for metric in metrics:
        tests = [_verdict(groups[a].finals.get(metric, []), groups[b].finals.get(metric, [])) for a, b in pairs]
        table.append([one_line(metric), *(group.mean_and_spread(metric) for group in groups), *tests])
    lines += _columns(table)
    if len(repeated) < len(groups):
        lines += ["", "One run says nothing about the spread: repeat it with other values of trainer.seed."]
    return "\n".join(lines)


def _verdict(a: Sequence[float], b: Sequence[float]) -> str:
    p = p_value(a, b)
    if p is None:
        return "?"
    return f"p={p:.2g}" + (" significant" if p < LEVEL else "")


def _flat(keys: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in keys.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        elif name not in ALONE:
            flat[f"{prefix}{name}"] = value
    return flat


def _cut(value: Any) -> str:
    text = one_line("-" if value is None else str(value))
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
