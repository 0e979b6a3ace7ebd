"""A server over an app of `bare_app`: the socket, the signals, limits of its connections, a log of bounded size."""

import asyncio
import errno
import ipaddress
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from burnish.errors import ConfigError
from burnish.web import connections
from burnish.web.connections import ACCEPTED_AT_ONCE, Connection, Connections

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LOOK_S = 0.5  # between two looks at the deadlines of connections
LOG_S = 10.0  # between two lines that are alike
LOGGERS = {"uvicorn.error": "", "asyncio": "socket.accept() ", connections.__name__: ""}  # → start of lines that repeat


class HttpServer(uvicorn.Server):
    """`ready` is called once it takes requests. A signal ends it with `exit_code` instead of being raised again."""

    def __init__(self, app: FastAPI, ready: Callable[[], None] = lambda: None, **options: Any):
        self.connections = Connections(app.state.limits, app.state.shape)
        self.stopped_by: int | None = None
        self._ready = ready
        quiet: dict[str, Any] = {"access_log": False, "log_config": None, "log_level": "warning"}
        plain: dict[str, Any] = {"ws": "none", "server_header": False, "proxy_headers": False}
        protocol: Any = partial(Connection, self.connections)
        keep_alive: Any = app.state.limits.keep_alive_s
        options = {"backlog": ACCEPTED_AT_ONCE, "timeout_keep_alive": keep_alive, **quiet, **plain, **options}
        super().__init__(uvicorn.Config(app, http=protocol, **options))

    @property
    def exit_code(self) -> int:
        return 130 if self.stopped_by == signal.SIGINT else 0

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        looking = asyncio.create_task(self._look())
        try:
            with seldom():
                await super().serve(sockets)
        finally:
            looking.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(socket.SOMAXCONN)  # asyncio has set it to what it accepts at once
        self._ready()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.connections.cut_overdue(asyncio.get_running_loop().time())

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.force_exit or (self.should_exit and sig == signal.SIGINT)
        self.should_exit = True
        self.stopped_by = self.stopped_by or sig


class Seldom(logging.Filter):
    """Of lines that are alike and begin with `start`, one in `LOG_S` seconds, with the number of those left out."""

    def __init__(self, start: str):
        super().__init__()
        self._start = start
        self._seen: dict[str, tuple[float, int]] = {}  # first line → when the next may be logged, left out until then

    def filter(self, record: logging.LogRecord) -> bool:
        line, now = str(record.msg).partition("\n")[0], time.monotonic()
        if not line.startswith(self._start):
            return True
        following, left_out = self._seen.get(line, (now, 0))
        if now < following:
            self._seen[line] = following, left_out + 1
            return False
        self._seen[line] = now + LOG_S, 0
        if left_out:
            record.msg = f"{record.msg} ({left_out} more such lines were left out)"
        return True


@contextmanager
def seldom() -> Iterator[None]:
    """Inside this block, clients cannot fill the log."""
    filters = {logging.getLogger(name): Seldom(start) for name, start in LOGGERS.items()}
    for logger, its in filters.items():
        logger.addFilter(its)
    try:
        yield
    finally:
        for logger, its in filters.items():
            logger.removeFilter(its)


def listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host {host}: no such address ({error}); use 127.0.0.1, or 0.0.0.0 for all") from error
    # With its protocol, asyncio sets TCP_NODELAY: otherwise the body of an answer waits 40 ms for the client's kernel.
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # At once, not once a model or an index is loaded: two servers that only bind could both have the port.
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        free = port + 1 if port < 65535 else 8000
        known = {
            errno.EADDRINUSE: f"port {port} on {host} is in use by another program; choose another: --port {free}",
            errno.EACCES: f"port {port} on {host}: no permission for ports below 1024; choose another: --port 8000",
            errno.EADDRNOTAVAIL: f"--host {host}: not an address of this machine; use 127.0.0.1, or 0.0.0.0 for all",
        }
        other = f"cannot listen on {host} port {port}: {error.strerror or error}"
        raise ConfigError(known.get(error.errno or 0, other)) from error
    listener.setblocking(False)
    return listener


def is_local(listener: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
