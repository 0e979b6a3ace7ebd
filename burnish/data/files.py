"""Data files to rows and back: parquet, json and jsonl (the last two also gzipped).

Consumes a path a user typed; produces rows as plain Python dicts (`read_rows`), or a `DataFile`: its columns, its row
count, and its rows in batches. Of a parquet file only the footer is read at first, then batch by batch, so it may be
larger than the memory; json is read whole. Everything that can be wrong with a file is a `DataError` that names it.
Knows nothing about prompts or tokenizers, and imports no torch.
"""

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from burnish.data.column_types import Columns
from burnish.errors import DataError, NotAvailable

Row = dict[str, Any]

FORMATS = (".parquet", ".json", ".jsonl", ".json.gz", ".jsonl.gz")
BATCH = 1024  # rows read at once


@dataclass(frozen=True)
class DataFile:
    """A readable file with at least one row. `batches()` yields the rows from the first, in order."""

    path: str  # as the user typed it
    columns: tuple[str, ...]
    rows: int
    batches: Callable[[], Iterator[list[Row]]]

    def __iter__(self) -> Iterator[Row]:
        for batch in self.batches():
            yield from batch

    def require_column(self, name: str, fix: str) -> None:
        """DataError unless the file has the column `name`, or the one that a dotted name starts with."""
        if name not in self.columns and name.split(".")[0] not in self.columns:
            raise no_column(self.path, name, self.columns, fix)


def describe(path: str | Path) -> DataFile:
    """The file's columns, row count and batches; DataError where it is missing, unreadable or empty."""
    file = locate(path)
    if is_parquet(file):
        with _parquet_errors(file):
            parquet = pq.ParquetFile(file)
        names, count = tuple(parquet.schema_arrow.names), parquet.metadata.num_rows
        if count:
            return DataFile(str(path), names, count, lambda: _parquet_batches(file))
    elif rows := _read_json(file):
        slices = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
        return DataFile(str(path), tuple(columns(rows)), len(rows), lambda: iter(slices))
    raise DataError(f"{file}: the file has no rows")


def read_rows(path: str | Path) -> list[Row]:
    """All rows of a file, in order, as plain Python values. A file without rows is an error."""
    return list(describe(path))


def read_first_rows(files: Sequence[str], most: int = -1) -> list[list[Row]]:
    """The rows of several files, at most `most` in all (-1: no limit): each gives its first rows, by its share."""
    tables = [read_rows(file) for file in files]
    sizes = [len(table) for table in tables]
    if 0 <= most < sum(sizes):
        sizes = largest_remainder(sizes, most)
    return [table[:size] for table, size in zip(tables, sizes, strict=True)]


def largest_remainder(weights: Sequence[float], total: int) -> list[int]:
    """`total` split by `weights`: each share is rounded down, and the largest remainders get one more."""
    exact = [Fraction(weight) for weight in weights]  # floats would round 0.3 of 10 either way
    exact = [weight * total / sum(exact) for weight in exact]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (shares[i] - exact[i], i))
    for i in by_remainder[: total - sum(shares)]:
        shares[i] += 1
    return shares


def write_parquet(rows: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    """Write rows so that a reader sees either no file or the whole one."""
    target = Path(path).expanduser()
    if not rows:
        raise DataError(f"{target}: there are no rows to write")
    table = to_table(rows, target)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, partial)
        os.replace(partial, target)
    except pa.ArrowNotImplementedError as exc:  # {} in every row, for one
        raise DataError(f"{target}: parquet cannot hold these rows: {exc}") from exc
    except OSError as exc:  # no permission, a file where a folder should be, a full disk
        raise DataError(f"{target}: cannot be written: {exc}") from exc
    finally:
        with suppress(OSError):  # what kept it from being written keeps it from being there
            partial.unlink(missing_ok=True)
    return target


def to_table(rows: Sequence[Mapping[str, Any]], file: Path) -> pa.Table:
    """The rows as parquet holds them: a type for each column. DataError, naming `file`, where one has several."""
    try:
        return pa.table({name: _column(file, name, [row.get(name) for row in rows]) for name in columns(rows)})
    except UnicodeEncodeError as exc:
        around = exc.object[max(0, exc.start - 20) : exc.end + 20]
        raise DataError(f"{file}: the text {around!r} has a lone surrogate; fix it or drop its row") from exc


def locate(path: str | Path) -> Path:
    """The file behind a path, or a DataError that says where it was looked for."""
    if "://" in str(path):
        raise NotAvailable(f"reading data from {path}", "Copy the file to this machine and give its local path.")
    file = Path(path).expanduser()
    if file.is_dir():
        raise DataError(f"{path} is a folder; name the files in it, e.g. {file / 'train.parquet'}")
    if not file.exists():
        raise DataError(f"data file not found: {path} (working directory: {Path.cwd()})")
    return file


def is_parquet(file: Path) -> bool:
    """Whether the file is parquet, by its name; DataError where it is none of the formats."""
    if not file.name.lower().endswith(FORMATS):
        raise DataError(f"{file}: unknown format; a data file ends with one of {', '.join(FORMATS)}")
    return file.name.lower().endswith(".parquet")


def columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names that any row has, in the order they first occur."""
    return list(dict.fromkeys(name for row in rows for name in row))


def no_column(file: str | Path, name: str, there: Iterable[str], fix: str) -> DataError:
    """The error about a missing column; `fix` is a sentence without its full stop."""
    return DataError(f"{file}: no column '{name}'; the columns are {', '.join(there)}. {fix}")


def at(path: str | Path, row: int) -> str:
    """How messages name a row."""
    return f"{path}, row {row} (the first is 0)"


def lookup(row: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted path such as `extra_info.difficulty`; None where a step of the path is missing."""
    value: Any = row.get(key)
    if value is None and "." in key:
        value = row
        for step in key.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _column(file: Path, name: str, values: list[Any]) -> pa.Array:
    """A column of one type; otherwise a DataError that says which rows differ, and where in the column."""

    def mixture() -> str | None:
        seen = Columns()
        for value in values:
            seen.add({name: value})
        return next((text for text, _ in seen.mixtures()), None)

    try:
        array = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as exc:
        problem = mixture() or f"column '{name}': {exc}"
        raise DataError(f"{file}: {problem}") from exc
    # Arrow takes text for bytes where both are there, and within a list bytes for text.
    may_mix = any(kind in str(array.type) for kind in ("binary", "list<item: string"))
    if may_mix and (found := mixture()):
        raise DataError(f"{file}: {found}")
    return array


@contextmanager
def _parquet_errors(file: Path) -> Iterator[None]:
    """What pyarrow raises on a broken file becomes a DataError that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as exc:
        raise DataError(
            f"{file}: not a readable parquet file ({file.stat().st_size} bytes); it may be truncated or of another "
            f"format. Write or download it again. The reader reported: {exc}"
        ) from exc


def _parquet_batches(file: Path) -> Iterator[list[Row]]:
    with _parquet_errors(file):
        for batch in pq.ParquetFile(file).iter_batches(BATCH):
            values = []
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                try:
                    values.append(column.to_pylist(maps_as_pydicts="lossy"))
                except (ValueError, OverflowError, LookupError) as exc:  # nanoseconds, year 10000, unknown time zones
                    said = str(exc).split(". ")[0]
                    raise DataError(
                        f"{file}: column '{name}' ({column.type}) has a value that Python has no type for: {said}. "
                        "Write the column in another type (timestamp[us], say, or text), or drop it"
                    ) from exc
            yield [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*values, strict=True)]


def _read_json(file: Path) -> list[Row]:
    """The rows of one array of objects, or of one object per line."""
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise DataError(f"{file}: not UTF-8 text (byte {exc.start}): {exc.reason}") from exc
    except (OSError, EOFError, zlib.error) as exc:
        fix = "; it is broken or no gzip file: download or write it again" if file.suffix == ".gz" else ""
        raise DataError(f"{file}: cannot be read: {exc}{fix}") from exc
    if text.lstrip().startswith("["):
        try:
            found = [(at(file, i), value) for i, value in enumerate(json.loads(text))]
        except json.JSONDecodeError as exc:
            raise DataError(f"{file}: not valid JSON: {exc.msg} (line {exc.lineno}, column {exc.colno})") from exc
        except RecursionError as exc:
            raise DataError(f"{file}: a row is nested too deeply to be read") from exc
    else:
        # Split at newlines only: str.splitlines would also cut at U+2028 and friends, which JSON strings may hold.
        lines = ((f"{file}: line {n}", line) for n, line in enumerate(text.split("\n"), start=1) if line.strip())
        found = [(where, _parse_line(where, line)) for where, line in lines]
    for where, value in found:
        if not isinstance(value, dict):
            raise DataError(f"{where} holds a {type(value).__name__}, not an object with named fields")
    return [value for _, value in found]


def _parse_line(where: str, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as exc:
        raise DataError(
            f"{where} is not valid JSON: {exc.msg} (column {exc.colno}). "
            "Expected one object per line, or one array of objects"
        ) from exc
    except RecursionError as exc:
        raise DataError(f"{where} is nested too deeply to be read") from exc
