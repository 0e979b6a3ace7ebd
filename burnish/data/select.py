"""Which rows of a file are meant: by number, at random, by the value of a column.

Consumes a `Table` and what a user typed (`0:3`, `data_source=openai/gsm8k`); hands on rows with their numbers. Row
numbers are those of the file and start at 0, as in every message of burnish.
"""

import json
import random
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.data.files import Row, lookup
from burnish.data.table import Table, require_column
from burnish.errors import ConfigError, DataError

FEW = 3  # rows where none are asked for, and values in a message

Span = tuple[int, int | None]  # the first row, and the one after the last; None: to the end of the file


@dataclass(frozen=True)
class Condition:
    """A column, also a dotted one, and the value it must have, as a person types it."""

    column: str
    value: str

    @classmethod
    def parse(cls, text: str) -> "Condition":
        column, equals, value = text.partition("=")
        if not equals or not column:
            raise ConfigError(f"--where {text}: expected COLUMN=VALUE, for example --where data_source=openai/gsm8k")
        return cls(column, value)

    def is_met(self, row: Row) -> bool:
        value: Any = lookup(row, self.column)
        return self.value in ((value,) if isinstance(value, str) else (str(value), json.dumps(value, default=str)))

    def __str__(self) -> str:
        return f"{self.column}={self.value}"


def parse_rows(text: str) -> list[Span]:
    """`5`, `0:3`, `7:` or several of them with commas."""
    spans: list[Span] = []
    for part in text.split(","):
        first, colon, end = (piece.strip() for piece in part.partition(":"))
        if not all(number.isdecimal() for number in (first, end) if number) or not (first or colon):
            raise ConfigError(f"--rows {text}: expected a row number, a range such as 0:3, or several: 0,7,9")
        start = int(first or 0)
        stop = start + 1 if not colon else int(end) if end else None
        if stop is not None and stop <= start:
            raise ConfigError(f"--rows {text}: {part.strip()} holds no row; the end comes after the start")
        spans.append((start, stop))
    return spans


@dataclass(frozen=True)
class Selection:
    """The rows of `spans`, or `draw` drawn from `seed`, or the first few; only such as meet all conditions."""

    spans: Sequence[Span] = ()
    draw: int | None = None
    seed: int = 0
    conditions: Sequence[Condition] = ()

    def rows(self, table: Table) -> list[tuple[int, Row]]:
        """The rows with their numbers, in the order asked for; no more of the file is read than needed."""
        for condition in self.conditions:
            require_column(table, condition.column, "Name one of them in --where")
        numbers = self._numbers(table)
        wanted, last, found = set(numbers), max(numbers), dict[int, Row]()
        for number, row in enumerate(table):
            if number in wanted:
                found[number] = row
            if number == last:
                break
        return [(number, found[number]) for number in numbers]

    def _numbers(self, table: Table) -> list[int]:
        if self.draw is not None:
            population: Sequence[int] = self._meeting(table) if self.conditions else range(table.rows)
            return sorted(random.Random(self.seed).sample(population, min(self.draw, len(population))))
        if not self.spans:
            return self._meeting(table, most=FEW)
        for start, _ in self.spans:
            if start >= table.rows:
                raise DataError(f"--rows: {table.path} has no row {start}; its rows are 0 to {table.rows - 1}")
        asked = [n for start, stop in self.spans for n in range(start, min(stop or table.rows, table.rows))]
        if not self.conditions:
            return asked
        meeting = set(self._meeting(table, among=set(asked)))
        return [n for n in asked if n in meeting]

    def _meeting(self, table: Table, among: Container[int] | None = None, most: int | None = None) -> list[int]:
        """The rows that meet all conditions, at most `most`; DataError with the values there are, where none does."""
        found: list[int] = []
        values: Counter[str] = Counter()
        for number, row in enumerate(table):
            if among is not None and number not in among:
                continue
            if all(condition.is_met(row) for condition in self.conditions):
                found.append(number)
                if len(found) == most:
                    break
            elif not found:
                values[f"{lookup(row, self.conditions[0].column)!s:.60}"] += 1
        if not found:
            there = ", ".join(f"{value} ({count:,})" for value, count in values.most_common(FEW))
            asked = " and ".join(map(str, self.conditions))
            column = self.conditions[0].column
            raise DataError(f"--where {asked}: {table.path} has no such row there; {column} is mostly {there}")
        return found
