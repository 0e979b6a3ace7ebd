"""`metrics.jsonl`: one line per logged step, always written. A killed run may leave lines past its last checkpoint and
a torn last line; `resume` takes both away, so that the file equals that of a run that was never interrupted."""

import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from burnish.errors import CheckpointError
from burnish.tracking.base import Backend, RunFacts
from burnish.tracking.disk import disk_problem, json_line, write_atomically

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
            kept = [record for record in read_lines(path) if int(record["step"]) <= step]
            write_atomically(path, map(json_line, kept))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._lines.append({"step": step, **metrics})

    def close(self, failed: bool = False) -> None:
        self._lines.close()


def read_metrics(path: str | Path) -> list[dict[str, float]]:
    """The lines of a metrics.jsonl (or of the one in a run folder), numbers as floats and `step` as an int."""
    path = Path(path)
    path = path / METRICS_FILE if path.is_dir() else path
    return [{key: int(v) if key == "step" else float(v) for key, v in record.items()} for record in read_lines(path)]


def read_lines(path: Path) -> list[dict]:
    """All whole lines of a .jsonl file; a torn last line, which a killed writer leaves, is not one."""
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    # Not splitlines(): a sample's text may hold U+2028, which that takes for the end of a line.
    return [json.loads(line) for line in whole.split("\n") if line.strip()]


def last_lines(path: Path, count: int) -> list[dict]:
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
    found = []
    for line in lines[-count:]:
        with suppress(ValueError):
            record = json.loads(line)
            found += [record] if isinstance(record, dict) else []
    return found


def cut_torn_line(path: Path) -> None:
    """Take away what follows the last newline, so that the next line does not grow out of half a line."""
    if path.is_file():
        with path.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
