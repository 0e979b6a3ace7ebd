"""`metrics.jsonl`: one line per logged step, always written. A killed run may leave lines past its last checkpoint and
a torn last line; `resume` takes both away, so that the file equals that of a run that was never interrupted."""

import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from burnish.errors import CheckpointError
from burnish.tracking.base import Backend, RunFacts
from burnish.tracking.disk import disk_problem, json_line, write_atomically

log = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
TAIL = 1 << 16  # bytes that are read first of a file's end


class LineFile:
    """A .jsonl file that grows by whole, flushed lines. Any thread may add one."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        self._file: TextIO | None = None

    def append(self, record: Mapping[str, object]) -> None:
        line = json_line(record)
        try:
            with self._lock:
                if self._file is None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    cut_torn_line(self.path)
                    self._file = self.path.open("a", encoding="utf-8", errors="backslashreplace")
                self._file.write(line)
                self._file.flush()
        except OSError as error:
            raise CheckpointError(f"cannot write {self.path}: {disk_problem(error)}") from error

    def close(self) -> None:
        with self._lock:
            file, self._file = self._file, None
            if file is None:
                return
            try:
                file.close()
            except OSError as error:
                raise CheckpointError(f"cannot write {self.path}: {disk_problem(error)}") from error


class JsonlBackend(Backend):
    def __init__(self, facts: RunFacts):
        super().__init__(facts)
        self._lines = LineFile(facts.folder / METRICS_FILE)

    def resume(self, step: int) -> None:
        path = self._lines.path
        if path.exists():
            kept = [record for record, metrics in _metrics(path) if metrics["step"] <= step]
            write_atomically(path, map(json_line, kept))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._lines.append({"step": step, **metrics})

    def close(self, failed: bool = False) -> None:
        self._lines.close()


def read_metrics(path: str | Path) -> list[dict[str, float]]:
    """The lines of a metrics.jsonl (or of the one in a run folder), numbers as floats and `step` as an int."""
    path = Path(path)
    path = path / METRICS_FILE if path.is_dir() else path
    return [metrics for _, metrics in _metrics(path)]


def _metrics(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, float]]]:
    """Each line, and its numbers. Lines that another program wrote are left out with a warning."""
    for record in read_lines(path):
        try:
            numbers = {key: float(value) for key, value in record.items()}
            yield record, {**numbers, "step": int(numbers["step"])}
        except (KeyError, TypeError, ValueError, OverflowError):
            log.warning("%s: a line without a step, or with other values than numbers, is left out", path)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole records of a .jsonl file; a torn last line, which a killed writer leaves, is not one. Of others that
    are none it warns. Lines are cut before they are decoded: one may be torn inside a character."""
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        if line.strip():
            record = record_of(line)
            if record is None:
                log.warning("%s: line %d is no JSON object and is left out", path, number)
            else:
                found.append(record)
    return found


def record_of(line: bytes) -> dict[str, Any] | None:
    """A line of a .jsonl file; None where it is no JSON object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def newest_samples(folder: Path, count: int) -> list[dict[str, Any]]:
    """The first rows of the newest `<step>.jsonl`; no more than them is read."""
    files = [file for file in folder.glob("*.jsonl") if file.stem.isdecimal()]
    if not files:
        return []
    with max(files, key=lambda file: int(file.stem)).open("rb") as lines:
        return [record for line in islice(lines, count) if (record := record_of(line)) is not None]


def last_lines(path: Path, count: int) -> list[dict[str, Any]]:
    """The last whole lines of a .jsonl file, which may be long: no more than them is read. Those that are no record, as
    another program may write, are left out."""
    with path.open("rb") as file:
        end, room = file.seek(0, os.SEEK_END), TAIL
        while True:
            start = file.seek(max(0, end - room))
            lines = file.read(end - start).split(b"\n")[:-1]  # what follows the last newline is torn
            lines = lines[1:] if start else lines  # the first may have begun earlier
            if len(lines) >= count or not start:
                break
            room *= 4
    return [record for line in lines[-count:] if (record := record_of(line)) is not None]


def cut_torn_line(path: Path) -> None:
    """Take away what follows the last newline, so that the next line does not grow out of half a line."""
    if path.is_file():
        with path.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
