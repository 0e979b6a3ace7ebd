"""HTTP as all servers of burnish speak it: `burnish serve`, the retriever, and the endpoint of agent programs.

`requests.py` reads bodies and checks keys, `connections.py` limits what a client may hold, `server.py` has the socket,
the signals and the log.
"""

from collections.abc import Mapping


class HttpProblem(Exception):
    """The answer to a request that is refused: a status and a reason."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None):
        super().__init__(detail)
        self.status, self.headers = status, dict(headers or {})


def overloaded(detail: str) -> HttpProblem:
    """503: clients try again."""
    return HttpProblem(503, f"{detail}; try again later", {"Retry-After": "1"})
