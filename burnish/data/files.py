"""Data files to rows and back: parquet, json and jsonl (the last two also gzipped).

Consumes a path a user typed; hands on rows as plain Python dicts (`read_rows`), or only the columns and the row count
for those who plan without loading (`describe`). Everything that can be wrong with a file is a `DataError` that names
it. Knows nothing about prompts or tokenizers, and imports no torch.
"""

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from burnish.data.column_types import Columns
from burnish.errors import DataError, NotAvailable

Row = dict[str, Any]

FORMATS = (".parquet", ".json", ".jsonl", ".json.gz", ".jsonl.gz")
BATCH = 1024  # rows that are read at once where a file need not be read whole


@dataclass(frozen=True)
class FileFacts:
    """What can be said of a file before its rows are used."""

    path: Path
    rows: int
    columns: tuple[str, ...]


def read_rows(path: str | Path) -> list[Row]:
    """All rows of a file, in order, as plain Python values. A file without rows is an error."""
    file = locate(path)
    rows = list(chain.from_iterable(parquet_batches(file))) if is_parquet(file) else _read_json(file)
    if not rows:
        raise DataError(f"{file}: the file has no rows")
    return rows


def describe(path: str | Path) -> FileFacts:
    """Row count and columns; of a parquet file only the footer is read."""
    file = locate(path)
    if is_parquet(file):
        with _parquet_errors(file):
            parquet = pq.ParquetFile(file)
        if not parquet.metadata.num_rows:
            raise DataError(f"{file}: the file has no rows")
        return FileFacts(file, parquet.metadata.num_rows, tuple(parquet.schema_arrow.names))
    rows = read_rows(file)
    return FileFacts(file, len(rows), tuple(columns(rows)))


def parquet_batches(file: Path) -> Iterator[list[Row]]:
    """The rows of a parquet file, some at a time."""
    with _parquet_errors(file):
        for batch in pq.ParquetFile(file).iter_batches(BATCH):
            yield _to_python(batch, file)


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
        raise DataError(f"{file}: the text {around!r} has a lone surrogate; mend it or drop its row") from exc


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
    return _format(file) == ".parquet"


def columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names any row has, in the order they first occur."""
    return list(dict.fromkeys(name for row in rows for name in row))


def no_column(file: str | Path, name: str, there: Iterable[str], fix: str) -> DataError:
    """The error about a column that a file has not; `fix` is a sentence without its full stop."""
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
    """One column, which has one type; otherwise a DataError that says which rows differ, and where in the column."""
    try:
        array = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as exc:
        problem = _mixture(name, values) or f"column '{name}': {exc}"
        raise DataError(f"{file}: {problem}") from exc
    # Arrow takes text for bytes where both are there, and within a list bytes for text.
    may_mix = any(kind in str(array.type) for kind in ("binary", "list<item: string"))
    if may_mix and (mixture := _mixture(name, values)):
        raise DataError(f"{file}: {mixture}")
    return array


def _mixture(name: str, values: list[Any]) -> str | None:
    """The first mixture of types in a column, in words."""
    seen = Columns()
    for value in values:
        seen.add({name: value})
    return next((text for text, _ in seen.mixtures()), None)


def _format(file: Path) -> str:
    name = file.name.lower()
    for suffix in FORMATS:
        if name.endswith(suffix):
            return suffix
    raise DataError(f"{file}: unknown format; a data file ends with one of {', '.join(FORMATS)}")


@contextmanager
def _parquet_errors(file: Path) -> Iterator[None]:
    """What pyarrow raises on a broken file becomes a DataError that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as exc:
        raise DataError(
            f"{file}: not a readable parquet file ({file.stat().st_size} bytes); it may be truncated or of another "
            f"format. Write or download it again. The reader said: {exc}"
        ) from exc


def _to_python(batch: pa.RecordBatch, file: Path) -> list[Row]:
    values: dict[str, list[Any]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            values[name] = column.to_pylist(maps_as_pydicts="lossy")
        except (ValueError, OverflowError, LookupError) as exc:  # nanoseconds, years after 9999, unknown time zones
            said = str(exc).split(". ")[0]
            raise DataError(
                f"{file}: column '{name}' ({column.type}) has a value that Python has no type for: {said}. Write the "
                "column in another type (timestamp[us], say, or text), or drop it"
            ) from exc
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def _read_json(file: Path) -> list[Row]:
    text = _read_text(file)
    if text.lstrip().startswith("["):
        return _rows_of_array(file, text)
    rows = []
    # Split at newlines only: str.splitlines would also cut at U+2028 and friends, which JSON strings may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as exc:
            raise DataError(
                f"{file}: line {number} is not valid JSON: {exc.msg} (column {exc.colno}). "
                "Expected one object per line, or one array of objects"
            ) from exc
        except RecursionError as exc:
            raise DataError(f"{file}: line {number} is nested too deeply to be read") from exc
        rows.append(_object(value, f"{file}: line {number}"))
    return rows


def _rows_of_array(file: Path, text: str) -> list[Row]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as exc:
        raise DataError(f"{file}: not valid JSON: {exc.msg} (line {exc.lineno}, column {exc.colno})") from exc
    except RecursionError as exc:
        raise DataError(f"{file}: a row is nested too deeply to be read") from exc
    return [_object(value, at(file, i)) for i, value in enumerate(values)]


def _object(value: Any, where: str) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{where} holds a {type(value).__name__}, not an object with named fields")
    return value


def _read_text(file: Path) -> str:
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise DataError(f"{file}: not UTF-8 text (byte {exc.start}): {exc.reason}") from exc
    except (OSError, EOFError, zlib.error) as exc:
        fix = "; it is broken or no gzip file: download or write it again" if file.suffix == ".gz" else ""
        raise DataError(f"{file}: cannot be read: {exc}{fix}") from exc
