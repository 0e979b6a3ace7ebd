"""What goes wrong with a request, as a status and a body in OpenAI's shape: `{"error": {message, type, param, code}}`.

Everything that reads a request raises a `Problem`; `app.py` is the boundary that turns it into a response. Nothing of
the server's inside (a traceback, a path) is part of one.
"""

from typing import Any

NOT_A_REQUEST = "invalid_request_error"


class Problem(Exception):
    """One error response."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = NOT_A_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def bad(message: str, param: str | None = None, code: str | None = None) -> Problem:
    """400: the request says something that is wrong, or that this server does not do."""
    return Problem(400, message, param=param, code=code)


def overloaded(message: str) -> Problem:
    """503: a right request at the wrong moment; clients try again."""
    return Problem(503, message, kind="server_error", code="overloaded", headers={"Retry-After": "1"})


def stopping() -> Problem:
    return Problem(503, "the server is shutting down", kind="server_error", code="shutting_down")


def broken() -> Problem:
    """500: the cause is in the server's log."""
    return Problem(500, "the server could not finish this request; its log says why", kind="server_error")


def shown(value: Any, limit: int = 60) -> str:
    """A value of the client's as it may stand in a message: ASCII, on one line, not long."""
    try:
        text = ascii(value)
    except RecursionError:  # lists in lists in lists
        text = f"a {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 3] + "..."
