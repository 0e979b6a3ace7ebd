"""A data file as a table: its columns, its row count, and its rows in batches.

A parquet file is read batch by batch, so one that is larger than the memory can be gone through; json has to be read
whole. Imports no torch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from burnish.data.files import BATCH, Row, columns, describe, is_parquet, locate, no_column, parquet_batches, read_rows


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
    if is_parquet(file):
        facts = describe(file)
        return Table(path, facts.columns, facts.rows, lambda: parquet_batches(file))
    rows = read_rows(file)
    return Table(path, tuple(columns(rows)), len(rows), lambda: _slices(rows))


def require_column(table: Table, name: str, fix: str) -> None:
    """DataError unless the file has the column `name`, or the one that a dotted name starts with."""
    if name not in table.columns and name.split(".")[0] not in table.columns:
        raise no_column(table.path, name, table.columns, fix)


def _slices(rows: list[Row]) -> Iterator[list[Row]]:
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]
