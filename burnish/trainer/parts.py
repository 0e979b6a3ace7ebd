"""The output of `burnish generate`, made piece by piece so that it survives being killed: its parts, then the whole.

`out.parquet` grows in a folder next to it:

    out.parquet.parts/job.json                          the facts of the job (response_file.py): whose parts these are
    out.parquet.parts/rows-000000128-000000256.parquet  rows 128 to 255, written at once or not at all
    out.parquet.parts/.lock                             held by the process that writes

`missing(size)` says which rows are still to be made, `write` adds a part, and `merge` streams all parts, in the order
of the rows, into the file itself, which appears whole; then the folder goes. The facts stay in the file's metadata:
whoever asks for the same again finds it complete, and whoever asks for something else is refused, not mixed in. Imports
no torch.
"""

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from burnish.errors import DataError
from burnish.tracking.disk import disk_problem
from burnish.tracking.lock import FolderLock
from burnish.trainer.response_file import whose

log = logging.getLogger(__name__)

KEY = b"burnish.generation"  # of the facts in a file's metadata
JOB, UNFINISHED = "job.json", ".writing"
PART = re.compile(r"rows-(\d+)-(\d+)\.parquet")
ROW_GROUP = 64 * 2**20  # bytes of rows that are merged together
OUTPUT = "data.output_path"
REPLACE = f"name another {OUTPUT}, or replace it with data.overwrite=true"


class GenerationOutput:
    """The output file of one job, and the lock on it.

    path       the file
    facts      what decides the result (`job_facts`)
    overwrite  whether a file that is there, and what another job left of one, may go

    Entering takes the lock, and raises where another process has it or another job's rows are in the way. Unless
    `is_complete`, `begin` comes before anything is written.
    """

    def __init__(self, path: str | Path, facts: Mapping[str, Any], *, overwrite: bool = False):
        self.path = Path(path)
        self.folder = self.path.with_name(f"{self.path.name}.parts")
        self.facts: dict[str, Any] = json.loads(json.dumps(facts))  # as they will be read again
        self.overwrite = overwrite
        self._lock = FolderLock(self.folder, (OUTPUT,), self.path)

    def __enter__(self) -> Self:
        self._lock.take()
        try:
            self._refuse_others()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def is_complete(self) -> bool:
        """Whether the file is there, whole, of this job and to stay. Parts that a killed `merge` left are removed."""
        complete = not self.overwrite and _facts_in(self.path) == self.facts
        if complete and _job_in(self.folder) == self.facts:
            self._clear()
        return complete

    def begin(self, schema: pa.Schema, total: int) -> None:
        """Be ready to write `total` rows of `schema`: what other jobs left goes, sound parts of this one stay."""
        about = {**(schema.metadata or {}), KEY: json.dumps(self.facts).encode()}
        self.schema, self.total = schema.with_metadata(about), total
        if _job_in(self.folder) != self.facts:
            self._clear()
            with self._appearing(self.folder / JOB) as unfinished:
                unfinished.write_text(json.dumps(self.facts, indent=1), encoding="utf-8")
        end = 0
        for rows, file in self._parts():
            if rows.start >= end and rows.stop <= total and self._read(rows, file) is not None:
                end = rows.stop
            else:
                log.warning("%s is damaged; its rows are made again", file)
                file.unlink()

    @property
    def saved(self) -> int:
        """Rows that are safe."""
        return sum(len(rows) for rows, _ in self._parts())

    def missing(self, size: int) -> Iterator[range]:
        """The rows that are not there yet, at most `size` at a time."""
        begin = 0
        for there in [*(rows for rows, _ in self._parts()), range(self.total, self.total)]:
            for start in range(begin, there.start, size):
                yield range(start, min(start + size, there.start))
            begin = there.stop

    def write(self, rows: range, table: pa.Table) -> None:
        """Keep the table of these rows; from here on they need not be made again."""
        with self._appearing(self.folder / f"rows-{rows.start:09}-{rows.stop:09}.parquet") as unfinished:
            pq.write_table(table, unfinished, write_page_checksum=True)

    def merge(self) -> None:
        """All parts as one file, in the order of the rows; then the parts go."""
        parts = self._parts()
        with self._appearing(self.path) as unfinished, pq.ParquetWriter(unfinished, self.schema) as writer:
            waiting: list[pa.Table] = []
            for rows, file in parts:
                if (table := self._read(rows, file)) is None:
                    raise DataError(f"{file} was damaged since it was written; the same command makes its rows again")
                waiting.append(table)
                if rows.stop == self.total or sum(table.nbytes for table in waiting) >= ROW_GROUP:
                    writer.write_table(pa.concat_tables(waiting))
                    waiting = []
        self._clear()

    def _read(self, rows: range, file: Path) -> pa.Table | None:
        """The table of a part; None where its bytes are not those that were written."""
        try:
            table = pq.ParquetFile(file, page_checksum_verification=True).read()
        except (pa.ArrowException, OSError):
            return None
        return table if len(table) == len(rows) and table.schema.equals(self.schema) else None

    def _parts(self) -> list[tuple[range, Path]]:
        """The parts there are, in the order of their rows."""
        files = self.folder.iterdir() if self.folder.is_dir() else ()
        named = [(PART.fullmatch(file.name), file) for file in files]
        found = [(range(int(name[1]), int(name[2])), file) for name, file in named if name]
        return sorted(found, key=lambda part: part[0].start)

    def _clear(self) -> None:
        """Remove all parts, and the name of their owner last: killed in between, they are still known."""
        for _, file in self._parts():
            file.unlink()
        (self.folder / JOB).unlink(missing_ok=True)

    def _refuse_others(self) -> None:
        """DataError where a finished or unfinished file of another job would be lost."""
        if self.path.is_dir():
            raise DataError(f"{self.path} is a folder; name a file in {OUTPUT}")
        if self.overwrite:
            return
        if self.path.exists():
            theirs = _facts_in(self.path)
            if theirs != self.facts:
                raise DataError(f"{self.path} already exists and {whose(theirs, self.facts)}; {REPLACE}")
        elif self.saved and (theirs := _job_in(self.folder)) != self.facts:
            raise DataError(
                f"{self.folder} holds {self.saved} rows of an unfinished output, which {whose(theirs, self.facts)}; "
                f"finish it with that command, {REPLACE}"
            )

    def _leave(self) -> None:
        """Let go. Without parts there is nothing to resume from, and no folder."""
        (self.folder / UNFINISHED).unlink(missing_ok=True)
        if not self._parts():
            (self.folder / JOB).unlink(missing_ok=True)
        self._lock.release()
        with contextlib.suppress(OSError):  # it is not empty
            self.folder.rmdir()

    @contextlib.contextmanager
    def _appearing(self, path: Path) -> Iterator[Path]:
        """A file to write into; it becomes `path` at the end, so that `path` is whole whenever the process dies."""
        unfinished = self.folder / UNFINISHED
        try:
            yield unfinished
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except OSError as error:
            raise DataError(
                f"cannot write {path}: {disk_problem(error, OUTPUT)}. What was saved before is kept: the same command "
                "resumes"
            ) from error


def _facts_in(file: Path) -> Any:
    """The facts that a parquet file was made with; None for a file that `merge` did not write."""
    try:
        text = (pq.ParquetFile(file).schema_arrow.metadata or {}).get(KEY)
        return None if text is None else json.loads(text)
    except (pa.ArrowException, OSError, ValueError):
        return None


def _job_in(folder: Path) -> Any:
    """The facts of the job whose parts these are; None where it is unknown."""
    try:
        return json.loads((folder / JOB).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
