"""What the columns of rows hold: types, nulls, and mixtures of types, also inside objects and lists.

Consumes rows one by one (`Columns.add`) and counts by place: `extra_info.index` is a field of an object, `tags[]` are
the items of lists. `burnish data check` reports the counts; where rows cannot be written as parquet, `files.py` gives
the reason in the same words. Imports no torch.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_FIELDS = 50  # of one object; keys that are data (ids, say) would otherwise fill the report
DEEPEST = 8  # levels of objects and lists that are looked at

#: Python's types in the words of the report. What is not here is named as Python does.
_WORDS = {str: "text", bool: "boolean", int: "integer", float: "number", bytes: "bytes", dict: "object"}
_WORDS |= {list: "list", tuple: "list"}


@dataclass
class ColumnFacts:
    """One place: a column, a field of objects, or the items of lists."""

    types: Counter[str] = field(default_factory=Counter)  # values by type; nulls have none
    first: dict[str, int] = field(default_factory=dict)  # the first row of each type

    def add(self, word: str, row: int, count: int = 1) -> None:
        self.types[word] += count
        if word not in self.first:
            self.first[word] = row

    @property
    def mixed(self) -> bool:
        """Whether the values could not share a column of a parquet file; what is in lists is a separate place."""
        words = {"list" if word.startswith("list<") else word for word in self.types}
        return len(words) > 1 and words != {"integer", "number"}


class Columns:
    """What the columns hold, row by row."""

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
