"""Rows and metrics that show themselves: a table in a terminal, HTML in a notebook; `to_pandas()` for more."""

import html
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from burnish.errors import UserError
from burnish.literal import one_line
from burnish.tracking.console import COLUMNS

SHOWN_ROWS, SHOWN_TEXT = 20, 60
WIDE_TEXT = 400  # characters of a cell in a notebook


class Table:
    """What is shown: `heads`, and the cells of some rows."""

    note = ""  # below the table

    def heads(self) -> list[str]:
        raise NotImplementedError

    def cells(self) -> list[list[Any]]:
        raise NotImplementedError

    def __repr__(self) -> str:
        rows = [[_text(cell, SHOWN_TEXT) for cell in row] for row in (self.heads(), *self.cells())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*lines, *([self.note] if self.note else [])])

    def _repr_html_(self) -> str:
        def row(tag: str, cells: Sequence[str]) -> str:
            style = ' style="text-align:left;white-space:pre-wrap"'
            return "<tr>" + "".join(f"<{tag}{style}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(row("td", [_text(cell, WIDE_TEXT) for cell in cells]) for cells in self.cells())
        return f"<table>{row('th', self.heads())}{body}</table><p>{html.escape(self.note)}</p>"

    def to_pandas(self) -> Any:
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError as error:
            raise UserError(
                "to_pandas() needs the package pandas; install it with `pip install -c constraints.txt pandas`"
            ) from error
        return pandas.DataFrame(dict(self) if isinstance(self, Mapping) else list(self))  # type: ignore[call-overload]


class Metrics(Table, Mapping[str, list[float]]):
    """Columns of metrics, one value per logged step (NaN: the step has none): `metrics["critic/score/mean"]`."""

    def __init__(self, records: Sequence[Mapping[str, float]]):
        self._records = records
        self._names = dict.fromkeys(["step", *(name for record in records for name in record)], math.nan)
        shown = {column.heading: name for column in COLUMNS if (name := column.metric(self._names))}
        self._shown = {"step": "step"} | shown | {name.split("/")[1]: name for name in self.curves}
        self.note = f"{len(self)} columns, {len(records)} rows; list(metrics) names them"

    @property
    def curves(self) -> list[str]:
        """The means of several reward functions, one of each."""
        return [name for name in self._names if re.fullmatch("reward/[^/]+/mean", name)]

    def __getitem__(self, name: str) -> list[float]:
        if name not in self._names:
            raise KeyError(name)
        return [record.get(name, math.nan) for record in self._records]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def heads(self) -> list[str]:
        return list(self._shown)

    def cells(self) -> list[list[Any]]:
        return [[record.get(name) for name in self._shown.values()] for record in self._records[-SHOWN_ROWS:]]


class Rows(Table, list[dict[str, Any]]):
    """Rows as a list of dicts."""

    #: Columns that are shown first, where rows have them; then no others.
    main = ("prompt", "ground_truth", "response", "responses", "score", "scores")

    def heads(self) -> list[str]:
        there = dict.fromkeys(name for row in self for name in row)
        return [name for name in self.main if name in there] or list(there)

    def cells(self) -> list[list[Any]]:
        names = self.heads()
        return [[row.get(name) for name in names] for row in self[:SHOWN_ROWS]]

    @property
    def note(self) -> str:  # type: ignore[override]
        columns = dict.fromkeys(name for row in self for name in row)
        return one_line(f"{len(self)} rows; columns: {', '.join(columns)}")


def _text(value: Any, most: int) -> str:
    is_empty = value is None or (isinstance(value, float) and math.isnan(value))
    text = "" if is_empty else one_line(f"{value:.4g}" if isinstance(value, float) else str(value))
    return text if len(text) <= most else text[: most - 1] + "…"
