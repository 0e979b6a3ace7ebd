"""How far the trajectories being generated are: on the progress line of a terminal, elsewhere in rare lines."""

import json
import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from burnish.waits import BatchProgress, batches, longest

FIRST_S, LOOK_S = 30.0, 1.0  # a batch has its first line after so long, and each next one after twice as long
FRESH_S = 15.0  # the status of another process is written every five seconds
FINISHING = "finish_sequences"  # the call of other processes that generate


def current_batch(folder: Path | None = None) -> BatchProgress | None:
    """The oldest batch of this process; or, where it waits for others of the run in this folder, theirs as one."""
    if own := batches():
        return own[0]
    if folder is None or not any(FINISHING in wait.subject for wait in longest()):
        return None
    found = []
    for file in (folder / "status").glob("*.json"):
        with suppress(OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            if time.time() - file.stat().st_mtime < FRESH_S:
                found += read_batches(json.loads(file.read_text(encoding="utf-8"))["batches"])[:1]
    if not found:
        return None
    left = [one.left_s for one in found if one.left_s is not None]
    done, total, speed = (sum(column) for column in zip(*(one[1:4] for one in found), strict=True))
    return BatchProgress(found[0].doing, done, total, speed, max(left, default=None), max(one.seconds for one in found))


def read_batches(given: Iterable[Any]) -> list[BatchProgress]:
    """From a status file; TypeError or ValueError where another program wrote it."""
    found = []
    for doing, done, total, speed, left, seconds in given:
        if not all(map(math.isfinite, (done, total, speed, left or 0.0, seconds))):
            raise ValueError(f"not finite: {given}")
        found.append(BatchProgress(str(doing), int(done), int(total), speed, left, seconds))
    return found


def batch_in_words(batch: BatchProgress) -> str:
    left = "" if batch.left_s is None else f", about {clock(batch.left_s)} left"
    return f"{batch.doing} {batch.done}/{batch.total}{left}, {batch.tokens_per_s:,.0f} tok/s"


def clock(seconds: float) -> str:
    """85 → 01:25, 3700 → 1:01:40."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


class BatchLines:
    """A line of a batch that takes long, after 30 s, 1 min, 2 min and so on. `read` gives the current one."""

    def __init__(self, read: Callable[[], BatchProgress | None], write: Callable[[str], None]):
        self._read, self._write = read, write
        self._due, self._seconds = FIRST_S, 0.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="batch-lines", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(LOOK_S)  # not longer: what it writes to may hang

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        batch = self._read()
        if batch is None or batch.seconds < self._seconds:  # the next one
            self._due = FIRST_S
        self._seconds = batch.seconds if batch else 0.0
        if batch and batch.seconds >= self._due:
            self._due = 2 * batch.seconds
            self._write(f"{batch_in_words(batch)} (after {clock(batch.seconds)})")
