"""One JSON object of a client's, read field by field. Whatever is wrong with it is a `Problem` that names the field.

Each method reads one field: it checks type and range, and gives the default where the field is absent or null. The
names that are read anywhere are declared first; any other name is refused, with the nearest one that there is.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

from burnish.config.nearest import nearest
from burnish.serving.problems import bad, shown


class Fields:
    """`values` is what the client sent, `known` the names it may use."""

    def __init__(self, values: Any, known: Collection[str], what: str = "the request"):
        if not isinstance(values, Mapping):
            raise bad(f"{what} must be a JSON object, not {shown(values)}")
        for name in values:
            if name not in known:
                near = nearest(name, known)
                hint = f"; did you mean {near!r}?" if near else f"; known: {', '.join(sorted(known))}"
                raise bad(f"{what} has an unknown field {shown(name)}{hint}", param=str(shown(name)).strip("'"))
        self._values = {name: value for name, value in values.items() if value is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def integer(self, name: str, default: int | None, low: int, high: int) -> int | None:
        value = self._values.get(name, default)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(name, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self._values.get(name, default)
        right = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not right or not low <= value <= high:
            raise self.wrong(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def texts(self, name: str, most: int, longest: int) -> tuple[str, ...]:
        """A string or a list of them; none of them empty."""
        value = self._values.get(name, [])
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
            raise self.wrong(name, "a string that is not empty, or a list of them")
        if len(value) > most or any(len(text) > longest for text in value):
            raise bad(f"{name}: at most {most} strings of at most {longest} characters", param=name)
        return tuple(value)

    def integers(self, name: str, most: int) -> tuple[int, ...]:
        value = self._values.get(name, [])
        if not is_ids(value) and value != []:
            raise self.wrong(name, "a list of whole numbers")
        if len(value) > most:
            raise bad(f"{name}: at most {most} of them", param=name)
        return tuple(value)

    def wrong(self, name: str, expected: str) -> Exception:
        return bad(f"{name}={shown(self._values.get(name))}: expected {expected}", param=name)


def is_ids(value: Any) -> bool:
    """Whether a value is a list of whole numbers with at least one in it."""
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
