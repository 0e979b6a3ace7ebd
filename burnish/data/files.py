"""Data files to rows and back: parquet, json and jsonl (the last two also gzipped); what is wrong is a `DataError`.

Parquet is read batch by batch, so it may be larger than the memory; rows of json are all kept. A file may come from
anywhere: what unpacks to far more than it is, is refused before it fills the memory. `Columns` counts what columns
hold, by place: `extra_info.index` is a field of an object, `tags[]` are the items of lists.
"""

import codecs
import gzip
import json
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from burnish.errors import DataError, NotAvailable

Row = dict[str, Any]

FORMATS = (".parquet", ".json", ".jsonl", ".json.gz", ".jsonl.gz")
BATCH = 1024  # rows read at once
SPACE = re.compile(r"\s*")
LONGEST_LINE = 2**28  # bytes of a line of jsonl
DEEPEST_ROW = 64  # levels of lists and objects in a row of json; parquet's reader has a limit of 100
UNPACKED = 2**26  # bytes that any gzip file may unpack to; a larger one to at most MOST_TIMES its size
MOST_TIMES = 100
DECODED = 2**32  # bytes that the rows of any parquet file may have; those of a larger one at most MOST_TIMES its size
MOST_FIELDS = 50  # of one object; keys that are data (ids, say) would otherwise fill the report
DEEPEST = 8  # levels of objects and lists that are looked at

#: Python's types in the words of the report. What is not here is named as Python does.
_WORDS = {str: "text", bool: "boolean", int: "integer", float: "number", bytes: "bytes", dict: "object"}
_WORDS |= {list: "list", tuple: "list"}


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
    if "://" in str(path):
        raise NotAvailable(f"reading data from {path}", "Copy the file to this machine and give its local path.")
    file = Path(path).expanduser()
    if file.is_dir():
        raise DataError(f"{path} is a folder; name the files in it, e.g. {file / 'train.parquet'}")
    if not file.exists():
        raise DataError(f"data file not found: {path} (working directory: {Path.cwd()})")
    if not file.is_file():  # to read a pipe could take for ever, and a device has no end
        raise DataError(f"{path} is a pipe, a socket or a device; write its rows to a file and name that")
    return file


def is_parquet(file: Path) -> bool:
    if not file.name.lower().endswith(FORMATS):
        raise DataError(f"{file}: unknown format; a data file ends with one of {', '.join(FORMATS)}")
    return file.name.lower().endswith(".parquet")


def columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def no_column(file: str | Path, name: str, there: Iterable[str], fix: str) -> DataError:
    return DataError(f"{file}: no column '{name}'; the columns are {', '.join(there)}. {fix}")


def at(path: str | Path, row: int) -> str:
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
    try:
        yield
    except (pa.ArrowException, OSError) as exc:
        raise DataError(
            f"{file}: not a readable parquet file ({file.stat().st_size} bytes); it may be truncated or of another "
            f"format. Write or download it again. The reader reported: {exc}"
        ) from exc


def _parquet_batches(file: Path) -> Iterator[list[Row]]:
    left = max(DECODED, MOST_TIMES * file.stat().st_size)
    with _parquet_errors(file):
        for batch in pq.ParquetFile(file).iter_batches(BATCH):
            values = []
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if pa.types.is_dictionary(column.type):
                    column = column.dictionary_decode()
                if (left := left - column.nbytes) < 0:
                    raise DataError(
                        f"{file}: its rows take more than {MOST_TIMES} times the file's size; split the file"
                    )
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
    """The rows of an array of objects, or of lines with one each."""
    rows: list[Row] = []
    lines, begin = _lines(file), 0  # of a line, in bytes
    for n, line in enumerate(lines, start=1):
        if not rows and line.lstrip(codecs.BOM_UTF8 + b" \t\r\n").startswith(b"["):
            return _read_array(file, _decoded(file, b"".join([line, *lines]), begin))
        where = f"{file}: line {n}"
        if len(line) == LONGEST_LINE:
            raise DataError(f"{where} has {LONGEST_LINE} bytes or more; drop or shorten its row")
        text = _decoded(file, line, begin)
        try:
            if text.strip():
                rows.append(_row(_loads(text, partial(str, where)), where, text.count("{") + text.count("[")))
        except json.JSONDecodeError as exc:
            fix = "Expected one object per line, or one array of objects"
            raise DataError(f"{where} is not valid JSON: {exc.msg} (column {exc.colno}). {fix}") from exc
        begin += len(line)
    return rows


def _read_array(file: Path, text: str) -> list[Row]:
    def broken() -> str:
        """The first element that cannot be read."""
        place, row = text.index("[") + 1, 0
        with suppress(ValueError, RecursionError):
            while True:
                element = SPACE.match(text, place).end()  # type: ignore[union-attr]  # it matches anywhere
                place = text.index(",", json.JSONDecoder().raw_decode(text, element)[1]) + 1
                row += 1
        return at(file, row)

    try:
        return [_row(value, at(file, i)) for i, value in enumerate(_loads(text, broken))]
    except json.JSONDecodeError as exc:
        raise DataError(f"{file}: not valid JSON: {exc.msg} (line {exc.lineno}, column {exc.colno})") from exc


def _lines(file: Path) -> Iterator[bytes]:
    """Split at newlines only, since JSON strings may hold U+2028 and friends; pieces of lines over LONGEST_LINE."""
    is_packed = file.name.lower().endswith(".gz")
    left = max(UNPACKED, MOST_TIMES * file.stat().st_size) if is_packed else sys.maxsize
    try:
        with gzip.open(file) if is_packed else file.open("rb") as stream:
            while line := stream.readline(min(LONGEST_LINE, left + 1)):
                if (left := left - len(line)) < 0:
                    raise DataError(
                        f"{file}: unpacks to more than {MOST_TIMES} times its size; unpack it and name that"
                    )
                yield line
    except (OSError, EOFError, zlib.error) as exc:
        fix = "; it is broken or no gzip file: download or write it again" if is_packed else ""
        raise DataError(f"{file}: cannot be read: {exc}{fix}") from exc


def _decoded(file: Path, content: bytes, begin: int) -> str:
    try:
        return (content if begin else content.removeprefix(codecs.BOM_UTF8)).decode()
    except UnicodeDecodeError as exc:
        raise DataError(f"{file}: not UTF-8 text (byte {begin + exc.start}): {exc.reason}") from exc


def _loads(text: str, where: Callable[[], str]) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError as exc:
        most = sys.get_int_max_str_digits()
        raise DataError(f"{where()} has an integer of more than {most} digits; write it as text") from exc
    except RecursionError as exc:
        raise DataError(f"{where()} is nested too deeply to be read") from exc


def _row(value: Any, where: str, levels: int = sys.maxsize) -> Row:
    """`levels`: as many as it has at most, if that is known; to count them takes as long as to read the row."""
    if not isinstance(value, dict):
        raise DataError(f"{where} holds a {type(value).__name__}, not an object with named fields")
    if levels > DEEPEST_ROW and _is_deep(value):
        raise DataError(f"{where} is nested too deeply to be read: more than {DEEPEST_ROW} levels")
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST_ROW):
        inside = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list))
        level = [inner for items in inside for inner in items if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


@dataclass
class ColumnFacts:
    types: Counter[str] = field(default_factory=Counter)  # values by type; nulls have none
    first: dict[str, int] = field(default_factory=dict)  # the first row of each type

    def add(self, word: str, row: int, count: int = 1) -> None:
        self.types[word] += count
        self.first.setdefault(word, row)

    @property
    def mixed(self) -> bool:
        """Whether the values could not share a column of a parquet file; what is in lists is a separate place."""
        words = {"list" if word.startswith("list<") else word for word in self.types}
        return len(words) > 1 and words != {"integer", "number"}


class Columns:
    def __init__(self) -> None:
        self.rows = 0
        self.facts: dict[str, ColumnFacts] = {}  # by place
        self.cut: set[str] = set()  # places whose objects have more fields than MOST_FIELDS; the others are not counted
        self._tops: dict[str, None] = {}
        self._fields: dict[str, dict[str, str]] = {}  # by the place of an object: its fields and their places

    def add(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            self._tops.setdefault(name)
            self._add(name, value, DEEPEST)
        self.rows += 1

    def nulls(self, name: str) -> int:
        """Rows without a value there: null, or not named at all."""
        return self.rows - self.facts[name].types.total()

    def names(self) -> list[str]:
        """The columns in the order they first occur, each followed by its fields."""
        return [name for top in self._tops for name in (top, *self._fields.get(top, {}).values())]

    def mixtures(self) -> Iterator[tuple[str, int]]:
        """Every mixture of types, in words, and the row in which its last type comes up."""
        for name, facts in self.facts.items():
            if facts.mixed:
                types = [f"{word} ({n:,}, first in row {facts.first[word]})" for word, n in facts.types.items()]
                text = f"'{name}' holds {', '.join(types)}; a parquet column has one type: convert them to one"
                yield text, max(facts.first.values())

    def _add(self, name: str, value: Any, levels: int) -> None:
        facts = self.facts.setdefault(name, ColumnFacts())
        if value is None:
            return
        word = _word(type(value))
        listed = word == "list" and value and value[0] is not None
        facts.add(f"list<{_word(type(value[0]))}>" if listed else word, self.rows)
        if levels and isinstance(value, dict):
            fields = self._fields.setdefault(name, {})
            for key, inner in value.items():
                if key in fields or len(fields) < MOST_FIELDS:
                    self._add(fields.setdefault(key, f"{name}.{key}"), inner, levels - 1)
                else:
                    self.cut.add(name)
        elif levels and isinstance(value, list | tuple):
            self._add_items(f"{name}[]", value, levels - 1)

    def _add_items(self, name: str, items: Sequence[Any], levels: int) -> None:
        kinds = Counter(map(type, items))  # a list of token ids is long, and all of one type
        if kinds.keys() & {dict, list, tuple}:
            for item in items:
                self._add(name, item, levels)
            return
        facts = self.facts.setdefault(name, ColumnFacts())
        for kind, count in kinds.items():
            if kind is not type(None):
                facts.add(_word(kind), self.rows, count)


def _word(kind: type) -> str:
    return _WORDS.get(kind, kind.__name__)
