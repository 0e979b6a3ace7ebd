"""The metrics of runs as columns: what was appended to a `metrics.jsonl` since the last look is read, nothing else.

`sampled` reads a few lines of it, for the small curve in the list of runs.
"""

import math
import os
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from burnish.dashboard.folders import opened
from burnish.literal import one_line
from burnish.tracking.jsonl import METRICS_FILE, record_of

KEPT = 32  # runs whose columns are kept
POINTS = 4000  # of a curve that are sent at most
LINE = 1 << 16  # bytes of one at most
SPARK = ("critic/score/mean", "train/loss", "val/loss")  # the first that a run has is its small curve


class RunMetrics:
    """The columns of one file. A run that resumes replaces the file; then it is read from the start."""

    def __init__(self) -> None:
        self.columns: dict[str, tuple[array[int], array[float]]] = {}  # name → steps, values
        self.file = 0  # its inode
        self._read = 0  # bytes
        self._lock = threading.Lock()

    def update(self, path: Path) -> None:
        with self._lock, opened(path) as file:
            inode, end = os.fstat(file.fileno()).st_ino, file.seek(0, os.SEEK_END)
            if inode != self.file or end < self._read:
                self.columns, self.file, self._read = {}, inode, 0
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole + newline)
            for line in whole.split(b"\n"):
                self._add(record_of(line) or {})

    def _add(self, record: dict[str, Any]) -> None:
        step = record.pop("step", None)
        if isinstance(step, int) and abs(step) < 1 << 62:
            for name, value in record.items():
                known = self.columns.get(name)
                steps, values = known or self.columns.setdefault(one_line(name), (array("q"), array("d")))
                steps.append(step)
                values.append(number(value))

    def series(self, names: Iterable[str], after: int) -> dict[str, dict[str, list[Any]]]:
        """Steps later than `after`; of a long curve every k-th point and the last. What is not finite is None."""
        with self._lock:
            return {name: self._series(name, after) for name in names}

    def _series(self, name: str, after: int) -> dict[str, list[Any]]:
        steps, values = self.columns.get(name, (array("q"), array("d")))
        first = next((i for i in range(len(steps), 0, -1) if steps[i - 1] <= after), 0)
        each = -(-(len(steps) - first) // POINTS) or 1
        chosen = range(len(steps) - 1, first - 1, -each)[::-1]
        finite = [values[i] if math.isfinite(values[i]) else None for i in chosen]
        return {"steps": [steps[i] for i in chosen], "values": finite}


class MetricsCache:
    def __init__(self) -> None:
        self._runs: OrderedDict[Path, RunMetrics] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, folder: Path) -> RunMetrics:
        with self._lock:
            run = self._runs.setdefault(folder, RunMetrics())
            self._runs.move_to_end(folder)
            while len(self._runs) > KEPT:
                self._runs.popitem(last=False)
        run.update(folder / METRICS_FILE)
        return run


def sampled(folder: Path, count: int = 64) -> dict[str, Any]:
    """`count` points of the reward over the whole run, by lines at even distances in the file."""
    with opened(folder / METRICS_FILE) as file:
        end, records = file.seek(0, os.SEEK_END), {}
        for i in range(count):
            if file.seek(i * end // count):
                file.readline(LINE)  # the rest of a line
            record = record_of(file.readline(LINE)) or {}
            if isinstance(record.get("step"), int):
                records[record["step"]] = record
    name = next((name for name in SPARK if any(name in one for one in records.values())), None)
    points = {step: number(one[name]) for step, one in sorted(records.items()) if name in one}
    return {"name": name, "values": [value for value in points.values() if math.isfinite(value)]}


def number(value: Any) -> float:
    """NaN where it is none."""
    try:
        return float(value)  # "nan" and "inf" are texts in JSON
    except (TypeError, ValueError, OverflowError):
        return math.nan
