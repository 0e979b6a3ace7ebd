"""What a client sent, read field by field; what is wrong with it is an `ApiError`: a status and OpenAI's body
`{"error": {message, type, param, code}}`, which holds nothing internal, such as a traceback or a path.
"""

from collections.abc import Collection, Mapping
from typing import Any

from burnish.config.nearest import nearest
from burnish.web import HttpProblem

NOT_A_REQUEST = "invalid_request_error"
CODES = {401: "invalid_api_key", 413: "too_large", 503: "overloaded"}


class ApiError(HttpProblem):
    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(status, message, headers)
        kind = NOT_A_REQUEST if status < 500 else "server_error"
        code = code or CODES.get(status)
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request is wrong, or asks for what this server does not support."""
    return ApiError(400, message, param=param, code=code)


def stopping() -> ApiError:
    return ApiError(503, "the server is shutting down", code="shutting_down")


def broken() -> ApiError:
    """500: the cause is in the server's log."""
    return ApiError(500, "the server could not finish this request; its log says why")


class Fields:
    """One JSON object: `values` is what the client sent, `known` the names that it may use. Each method reads one
    field: it checks type and range, and returns the default if the field is absent or null."""

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
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
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

    def integers(self, name: str, most: int, below: int) -> tuple[int, ...]:
        value = self._values.get(name, [])
        if value != [] and (not is_ids(value) or not all(0 <= number < below for number in value)):
            raise self.wrong(name, f"a list of whole numbers from 0 to {below - 1}")
        if len(value) > most:
            raise bad(f"{name}: at most {most} of them", param=name)
        return tuple(value)

    def wrong(self, name: str, expected: str) -> Exception:
        return bad(f"{name}={shown(self._values.get(name))}: expected {expected}", param=name)


def is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def is_deep(value: Any, most: int) -> bool:
    """Whether more than `most` objects and lists of JSON are inside of each other."""
    level = [value]
    for _ in range(most + 1):
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return False
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return True


def shown(value: Any, limit: int = 60) -> str:
    """A client's value for a message: ASCII, on one line, not long."""
    text = ascii(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
