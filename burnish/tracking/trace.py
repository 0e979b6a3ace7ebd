"""The spans of a run (`burnish/spans.py`), read again: those of one step, or all; and as one Chrome trace, which
chrome://tracing and https://ui.perfetto.dev open.

Lines are in the order of their ends, so those of a step are found by bisection, however long the files are.
"""

import bisect
import itertools
import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from burnish.errors import ConfigError
from burnish.spans import FOLDER
from burnish.tracking.jsonl import record_of
from burnish.tracking.timer import WHOLE

CONTROLLER = "controller"
LATEST = 1e12  # seconds since 1970
CLOCKS_S = 1e-5  # by which rounded times may differ

Spans = dict[str, list[dict[str, Any]]]  # by process, each in the order of their ends


def read_trace(run: Path, step: int | None = None, opener: Callable[[Path], BinaryIO] | None = None) -> Spans:
    """The spans of each process, the controller first; of one step, as it was run last. ConfigError where there are
    none."""
    files = {path.stem: path for path in sorted((run / FOLDER).glob("*.jsonl"))}
    files = {name: files[name] for name in sorted(files, key=lambda name: name != CONTROLLER)}
    if not files:
        raise ConfigError(f"{run} has no {FOLDER}/: no process of this run has recorded what it did")
    low, high = -math.inf, math.inf
    if step is not None:
        with _Lines(next(iter(files.values())), opener) as lines:
            whole = lines.last_of_step(step)
        if whole is None:
            raise ConfigError(f"{run / FOLDER} has no step {step}")
        low, high = whole["start"], whole["start"] + whole["s"]
    found: Spans = {}
    for name, path in files.items():
        with _Lines(path, opener) as lines:
            found[name] = list(lines.between(low - CLOCKS_S, high + CLOCKS_S))
    return found


class _Lines:
    """A file of spans."""

    def __init__(self, path: Path, opener: Callable[[Path], BinaryIO] | None):
        self._file = opener(path) if opener else path.open("rb")
        try:
            self._data: Any = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # it is empty
            self._data = b""

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *error: object) -> None:
        if self._data:
            self._data.close()
        self._file.close()

    def last_of_step(self, step: int) -> dict[str, Any] | None:
        at = self._data.rfind(f'"step": {step}}}\n'.encode())  # as `spans.py` writes it: the last fact
        return next(self._from(self._data.rfind(b"\n", 0, at) + 1), None) if at >= 0 else None

    def between(self, low: float, high: float) -> Iterator[dict[str, Any]]:
        """Those that end between two times; also such as began before."""
        first = bisect.bisect_left(
            range(len(self._data)), low, key=lambda at: next(map(_end, self._from(at)), math.inf)
        )
        return itertools.takewhile(lambda span: _end(span) <= high, self._from(first))

    def _from(self, at: int) -> Iterator[dict[str, Any]]:
        """The spans of the lines that begin at this byte or later; what is none is left out."""
        if at:
            before = self._data.find(b"\n", at - 1)
            at = before + 1 if before >= 0 else len(self._data)
        while (end := self._data.find(b"\n", at)) >= 0:
            span = record_of(self._data[at:end]) or {}
            times = [span.get("start"), span.get("s")]
            are_times = all(isinstance(one, float | int) and abs(one) < LATEST for one in times)  # not NaN
            if are_times and isinstance(span.get("name"), str):
                yield span
            at = end + 1


def _end(span: dict[str, Any]) -> float:
    return float(span["start"] + span["s"])


def chrome_trace(spans: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """One row per process, with its threads. Waits overlap, so each is an event with its own beginning and end."""
    events: list[dict[str, Any]] = []
    origin = min((span["start"] for several in spans.values() for span in several), default=0.0)
    numbers = itertools.count(1)
    for pid, (process, several) in enumerate(spans.items(), 1):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}})
        names = dict.fromkeys(str(span.get("thread")) for span in several if "wait" not in span)
        threads = {name: number for number, name in enumerate(names, 1)}
        for name, tid in threads.items():
            events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})
        for span in several:
            at, lasts = (span["start"] - origin) * 1e6, span["s"] * 1e6
            event = {"name": span["name"], "pid": pid, "ts": at}
            if "wait" in span:
                event |= {"cat": str(span["wait"]), "id": next(numbers), "tid": 0}
                events.append({**event, "ph": "b", "args": {"owner": span.get("owner")}})
                events.append({**event, "ph": "e", "ts": at + lasts})
            else:
                args = {"step": span["step"]} if span["name"] == WHOLE and "step" in span else {}
                tid = threads[str(span.get("thread"))]
                events.append({**event, "ph": "X", "dur": lasts, "tid": tid, "args": args})
    return {"displayTimeUnit": "ms", "traceEvents": events}
