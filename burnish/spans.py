"""Spans: what this process does when. `with span("update_actor"):` records a phase, a worker's call, or a part of one.

Each process of a run appends its spans to trace/<name>.jsonl (`record`), a line for each, in the order of their ends;
`tracking/trace.py` reads them. While a step is profiled, `marks` (ranges of a profiler) are set around each span too,
and waits are recorded (`waits_recorded`). The disk is touched once per step or call.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from burnish import waits

FOLDER = "trace"  # in the run folder
EPOCH = time.time() - time.monotonic()  # noted once: where the clock is set back, spans stay in their order

log = logging.getLogger(__name__)

marks: list[Callable[[str], AbstractContextManager[Any]]] = []  # entered around each span, with its name
_recorder: "Recorder | None" = None
_around = threading.local()  # `depth`: the number of spans around this place of the thread


class Recorder:
    """Writes the spans of this process as `name`."""

    def __init__(self, run: Path, name: str):
        self.path = run / FOLDER / f"{name}.jsonl"
        self._lines: list[str] = []
        self._lock = threading.Lock()
        self._could_write = True

    def add(self, name: str, start: float, seconds: float, **about: Any) -> None:
        span = {"name": name, "start": round(start, 6), "s": round(seconds, 6), **about}
        with self._lock:
            self._lines.append(json.dumps(span) + "\n")

    def flush(self) -> None:
        """Opened each time: what an earlier run left may be moved aside meanwhile."""
        with self._lock:
            lines, self._lines = self._lines, []
            if not lines:
                return
            try:
                self.path.parent.mkdir(exist_ok=True)
                with self.path.open("a") as file:
                    file.write("".join(lines))
            except OSError as error:  # training does not fail for its trace
                log.log(logging.WARNING if self._could_write else logging.DEBUG, "%s: %s", self.path, error)
                self._could_write = False


def record(run: Path, name: str) -> None:
    """Record the spans of this process from now on, as the process `name` of the run in this folder."""
    global _recorder
    _recorder = Recorder(run, name)


def stop_recording() -> None:
    global _recorder
    if _recorder is not None:
        _recorder.flush()
    _recorder = None


@contextmanager
def span(name: str, **about: Any) -> Iterator[None]:
    """Record a block, with facts about it."""
    recorder, depth = _recorder, getattr(_around, "depth", 0)
    start = time.monotonic()
    _around.depth = depth + 1
    try:
        with ExitStack() as stack:
            for mark in marks:
                stack.enter_context(mark(name))
            yield
    finally:
        _around.depth = depth
        if recorder is not None:
            thread = threading.current_thread().name
            recorder.add(name, EPOCH + start, time.monotonic() - start, thread=thread, **about)
            if not depth:
                recorder.flush()


@contextmanager
def marked(mark: Callable[[str], AbstractContextManager[Any]]) -> Iterator[None]:
    """Set this mark around all spans that begin in the block."""
    marks.append(mark)
    try:
        yield
    finally:
        marks.remove(mark)


@contextmanager
def waits_recorded() -> Iterator[None]:
    """Record what this process waits for, until the end of the block that began first."""
    if _add_wait in waits.observers:  # that of another worker in this process
        yield
        return
    waits.observers.append(_add_wait)
    try:
        yield
    finally:
        waits.observers.remove(_add_wait)


def _add_wait(wait: waits.Wait) -> None:
    if _recorder is not None:
        age = wait.age
        _recorder.add(wait.subject, EPOCH + time.monotonic() - age, age, wait=wait.kind, owner=wait.owner)
