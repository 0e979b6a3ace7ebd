"""Rows to a batch: `DataProto` with one object array per field, in the order of the rows.

Consumes rows of a dataset (and what the trainer added, such as `uid`); hands on a batch without tensors. A field that
only some rows have is None in the others.
"""

from collections.abc import Sequence

from burnish.data.files import Row, columns
from burnish.protocol import DataProto


def with_same_fields(rows: Sequence[Row]) -> list[Row]:
    """The rows, with None for a field that only others have."""
    names = columns(rows)
    return [{name: row.get(name) for name in names} for row in rows]


def collate(rows: Sequence[Row]) -> DataProto:
    """The rows as a batch of non-tensor fields."""
    if not rows:
        raise ValueError("collate needs at least one row")
    return DataProto.from_dict(non_tensors={name: [row.get(name) for row in rows] for name in columns(rows)})
