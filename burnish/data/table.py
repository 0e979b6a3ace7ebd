"""A data file as a table: its rows in batches, and what its columns hold.

Consumes a path; hands on a `Table` (columns, row count, rows in batches), and `Columns`, which is shown every row and
then knows the types, the nulls and the mixtures of types. A parquet file is read batch by batch, so one that is larger
than the memory can be gone through; json has to be read whole. Imports no torch.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from burnish.data.files import Row, columns, describe, locate, read_rows
from burnish.errors import DataError

BATCH = 1024
MOST_FIELDS = 50  # of one object column; keys that are data (ids, say) would otherwise fill the report

#: Python's types in the words of the report. What is not here is named as Python does.
_WORDS = {str: "text", bool: "boolean", int: "integer", float: "number", bytes: "bytes", dict: "object", list: "list"}
#: Types that one parquet column can hold together.
_TOGETHER = ({"integer", "number"},)


@dataclass(frozen=True)
class Table:
    """A readable file with at least one row. `batches()` goes through the rows from the first, in order."""

    path: str  # as the user typed it
    columns: tuple[str, ...]
    rows: int
    batches: Callable[[], Iterator[list[Row]]]

    def __iter__(self) -> Iterator[Row]:
        for batch in self.batches():
            yield from batch


def open_table(path: str) -> Table:
    """The table in a file; DataError where there is none, or it cannot be read."""
    file = locate(path)
    if file.name.lower().endswith(".parquet"):
        facts = describe(file)
        return Table(path, facts.columns, facts.rows, lambda: _parquet_batches(file))
    rows = read_rows(file)
    return Table(path, tuple(columns(rows)), len(rows), lambda: _slices(rows))


def require_column(table: Table, name: str, fix: str) -> None:
    """DataError unless the file has the column `name`, or the one that a dotted name starts with."""
    if name not in table.columns and name.split(".")[0] not in table.columns:
        raise DataError(f"{table.path}: no column '{name}'; the columns are {', '.join(table.columns)}. {fix}")


def _parquet_batches(file: Path) -> Iterator[list[Row]]:
    try:
        for batch in pq.ParquetFile(file).iter_batches(BATCH):
            yield batch.to_pylist(maps_as_pydicts="lossy")
    except (pa.ArrowException, OSError) as exc:
        raise DataError(f"{file}: its rows cannot be read; write or download it again. The reader said: {exc}") from exc


def _slices(rows: list[Row]) -> Iterator[list[Row]]:
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


@dataclass
class ColumnFacts:
    """One column, or a field of an object column (`extra_info.index`)."""

    types: Counter[str] = field(default_factory=Counter)  # rows by type; nulls have none
    first: dict[str, int] = field(default_factory=dict)  # the first row of each type

    def add(self, value: Any, row: int) -> None:
        word = type_word(value)
        self.types[word] += 1
        if word not in self.first:
            self.first[word] = row

    @property
    def mixed(self) -> bool:
        """Whether the values could not share a column of a parquet file."""
        words = set(self.types)
        if any(word.startswith("list<") for word in words):
            words.discard("list")  # an empty list goes with any
        return len(words) > 1 and not any(words <= together for together in _TOGETHER)


class Columns:
    """What the columns of a file hold, row by row."""

    def __init__(self) -> None:
        self.rows = 0
        self.facts: dict[str, ColumnFacts] = {}
        self.cut: set[str] = set()  # columns with more fields than MOST_FIELDS; the others are not looked at
        self._fields: Counter[str] = Counter()
        self._parent: dict[str, str] = {}  # the column of each field

    def add(self, row: Row) -> None:
        for name, value in row.items():
            facts = self.facts.get(name)
            if facts is None:
                facts = self.facts[name] = ColumnFacts()
            if value is None:
                continue
            facts.add(value, self.rows)
            if isinstance(value, dict):
                self._add_fields(name, value)
        self.rows += 1

    def nulls(self, name: str) -> int:
        """Rows without a value there: null, or not named at all."""
        return self.rows - self.facts[name].types.total()

    def names(self) -> list[str]:
        """The columns in the order they first occur, each followed by its fields."""
        tops = [name for name in self.facts if name not in self._parent]
        return [name for top in tops for name in (top, *(n for n, parent in self._parent.items() if parent == top))]

    def _add_fields(self, column: str, value: Row) -> None:
        for key, inner in value.items():
            name = f"{column}.{key}"
            facts = self.facts.get(name)
            if facts is None:
                if self._fields[column] == MOST_FIELDS:
                    self.cut.add(column)
                    continue
                self._fields[column] += 1
                self._parent[name] = column
                facts = self.facts[name] = ColumnFacts()
            if inner is not None:
                facts.add(inner, self.rows)


def type_word(value: Any) -> str:
    """The type of a value that is not null, as the report calls it."""
    word = _WORDS.get(type(value), type(value).__name__)
    if word == "list" and value and value[0] is not None:
        return f"list<{_WORDS.get(type(value[0]), type(value[0]).__name__)}>"
    return word
