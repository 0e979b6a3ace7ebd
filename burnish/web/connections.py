"""The connections of a server: how many there are, and how long a client may let each of them wait.

uvicorn waits without end for a request to arrive and for an answer to be read, and takes connections until the process
has no descriptor left. Here, whoever lets the server wait too long is cut off, and if there are too many connections,
so is the one that waits longest for its client. A request that has arrived is never cut.
"""

import http
import logging
import math
import os
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
from fastapi.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from burnish.web import HttpProblem, overloaded
from burnish.web.requests import Limits

ACCEPTED_AT_ONCE = 8  # by one turn of the event loop: what is above the limit is closed a few turns later
RESERVE = 8 * ACCEPTED_AT_ONCE  # descriptors for them, and for files of this process
LINGER_S = 5.0  # for a client to read why its connection ends

logger = logging.getLogger(__name__)


class Connections:
    """Those of one server. Belongs to its event loop."""

    def __init__(self, limits: Limits, shape: Callable[[HttpProblem], Response]):
        self.limits, self.shape = limits, shape
        self.most = max(descriptors(limits.connections + RESERVE) - RESERVE, 1)
        self.open: set[Connection] = set()
        self.idle: dict[Connection, None] = {}  # those that wait for their client, the longest first

    def make_room(self) -> bool:
        """Whether there is a place for one more connection."""
        if len(self.open) < self.most:
            return True
        oldest = next(iter(self.idle), None)
        if oldest is None:
            logger.warning("refusing connections: %d are open, all with a request that is being answered", self.most)
            return False
        logger.warning("closing the connection that waits longest for its client: %d are open", self.most)
        oldest.cut()
        return True

    def cut_overdue(self, now: float) -> None:
        for each in list(self.open):
            unread = each.transport.get_write_buffer_size()
            if not unread or unread != each.unread:
                each.unread, each.read_by = unread, now + self.limits.read_s
            if now > min(each.deadline, each.read_by):
                each.cut()


class Connection(H11Protocol):
    """One connection. It is idle while its client is the one to act: to send a request, or the rest of it."""

    def __init__(self, group: Connections, **given: Any):
        super().__init__(**given)
        self._group = group
        self._is_refused = False
        self.deadline = math.inf  # by which a request must have come
        self.unread = 0  # bytes of answers, when last looked at
        self.read_by = math.inf  # by which the client must have read some of them

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self._group.make_room():
            self._expect(self._group.limits.header_s)
        else:
            self.refuse(overloaded("too many connections are open"))
        self._group.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._group.open.discard(self)
        self._group.idle.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        if not self._is_answering:  # the beginning of a request; more of it does not give it more time
            self.deadline = min(self.deadline, self.loop.time() + self._group.limits.header_s)

    def handle_events(self) -> None:
        super().handle_events()
        if self._is_answering and not self._is_refused:
            self.deadline = math.inf  # the time for a body is that of `read_body`
            if not self.cycle.more_body:
                self._group.idle.pop(self, None)

    def on_response_complete(self) -> None:
        self._expect(self._group.limits.keep_alive_s)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        error = sys.exc_info()[1]  # uvicorn calls this where it handles it
        self.refuse(HttpProblem(getattr(error, "error_status_hint", 400), f"the request is not valid HTTP: {error}"))

    def refuse(self, problem: HttpProblem) -> None:
        """Answer without reading on, and wait for the client to close: it might not read an answer otherwise."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected, self.cycle.waiting_for_100_continue = True, False
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.cut()
            return
        answer = self._group.shape(problem)
        answer.headers["connection"] = "close"
        line = f"HTTP/1.1 {answer.status_code} {http.HTTPStatus(answer.status_code).phrase}".encode()
        self.transport.write(b"\r\n".join([line, *(b": ".join(pair) for pair in answer.raw_headers), b"", b""]))
        self.transport.write(bytes(answer.body))
        with suppress(OSError):  # the client has left
            self.transport.write_eof()
        self._is_refused = True
        self._expect(LINGER_S)

    def shutdown(self) -> None:
        if self._is_refused:
            self.transport.close()
        else:
            super().shutdown()

    def cut(self) -> None:
        """At once, also if the client does not read what was written."""
        self._group.idle.pop(self, None)
        self.transport.abort()

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: the request is answered without the upgrade."""

    def _expect(self, seconds: float) -> None:
        self.deadline = self.loop.time() + seconds
        self._group.idle.pop(self, None)
        self._group.idle[self] = None

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


def descriptors(wanted: int) -> int:
    """How many more this process may open, at most `wanted`; raises the soft limit for them."""
    used = len(os.listdir("/dev/fd"))
    soft, hard = (math.inf if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    if soft < min(used + wanted, hard):
        more = min(used + wanted, hard)
        with suppress(OSError, ValueError):  # there is a lower limit that this does not show, as on macOS
            resource.setrlimit(resource.RLIMIT_NOFILE, (int(more), -1 if hard == math.inf else int(hard)))
            soft = more
    return int(min(soft - used, wanted))
