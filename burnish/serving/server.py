"""`burnish serve`: the socket, the signals and the order of start and shutdown.

The port is opened before the model is loaded, so that a wrong port fails at once. Ctrl-C or SIGTERM ends the server:
running requests have `GRACE_S` to finish, then they are aborted with an error. A second Ctrl-C does not wait.
"""

import asyncio
import errno
import ipaddress
import json
import logging
import os
import shlex
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from burnish.errors import ConfigError
from burnish.literal import print_text
from burnish.openai_wire.http import server_config
from burnish.serving.app import ModelService, make_app
from burnish.serving.engine_thread import EngineThread
from burnish.serving.loading import ModelOptions, ServedModel, check, load
from burnish.tracking.watchdog import Watchdog

GRACE_S = 5
BACKSTOP_S = 10  # after the grace, for responses that do not end although their sequences did
SILENCE_S = 20  # how long a connection may take to send its request
TICKS = 10  # in a second, of uvicorn
SIGNALS = (signal.SIGINT, signal.SIGTERM)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServeOptions:
    model: ModelOptions
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    api_key: str | None = None
    max_waiting: int = 256


def serve(options: ServeOptions) -> int:
    """Serve until a signal; the exit code."""
    check(options.model)
    with listen(options.host, options.port) as listener:
        address = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0])
        if not address.is_loopback and options.api_key is None:
            warning = "--host %s without --api-key: any machine that reaches port %s may use the model"
            logger.warning(warning, options.host, listener.getsockname()[1])
        logger.info("loading %s", options.model.folder)
        model = load(options.model, options.name)
        # A step of the engine that hangs ends the server; nothing is written before that.
        watchdog = Watchdog(Path(tempfile.gettempdir()) / f"burnish-serve-{os.getpid()}", "serve", stage=lambda: "")
        watchdog.start()
        with closing(model.engine), ExitStack() as stack:
            stack.callback(watchdog.stop)
            return asyncio.run(run(model, options, listener, lambda _: print_address(model, options, listener)))


async def run(
    model: ServedModel, options: ServeOptions, listener: socket.socket, ready: Callable[["ServeServer"], None]
) -> int:
    """Serve a loaded model on a listening socket, until a signal or `should_exit` of the server; the exit code. `ready`
    is called with the server when it takes requests."""
    engine = EngineThread(model.engine)
    try:
        service = ModelService(model, engine, options.model.max_num_seqs + options.max_waiting, options.api_key)
        with closing(service):
            server = ServeServer(service, ready)
            await server.serve(sockets=[listener])
    finally:
        await engine.stop()
    return 130 if server.stopped_by == signal.SIGINT else 0


class ServeServer(uvicorn.Server):
    """uvicorn, with a grace for running requests and signals that end in an exit code instead of being raised again."""

    def __init__(self, service: ModelService, ready: Callable[["ServeServer"], None]):
        super().__init__(server_config(make_app(service), timeout_graceful_shutdown=GRACE_S + BACKSTOP_S))
        self.stopped_by: int | None = None
        self._service, self._ready = service, ready
        self._silent: dict[Any, float] = {}  # connection and its last request → since when there is no other

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready(self)

    async def on_tick(self, counter: int) -> bool:
        """Close connections that send no request: uvicorn itself waits for the headers for ever."""
        if counter % TICKS:
            return await super().on_tick(counter)
        now = time.monotonic()
        connections: list[Any] = list(self.server_state.connections)
        idle = [c for c in connections if c.cycle is None or c.cycle.response_complete]
        self._silent = {(c, c.cycle): self._silent.get((c, c.cycle), now) for c in idle}
        for (connection, _), since in self._silent.items():
            if now - since > SILENCE_S:
                connection.transport.close()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._service.engine.in_flight:
            logger.info("stopping; answers in flight: %d, with %d s to finish", self._service.engine.in_flight, GRACE_S)
        timer = asyncio.get_running_loop().call_later(GRACE_S, self._service.engine.abort)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

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


def listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host {host}: no such address ({error}); use 127.0.0.1, or 0.0.0.0 for all") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # At once, not once the model is loaded: two servers that only bind could both have the port.
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


def print_address(model: ServedModel, options: ServeOptions, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    address = f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
    key = ["-H 'Authorization: Bearer KEY'"] if options.api_key else []
    body = json.dumps({"model": model.name, "messages": [{"role": "user", "content": "Hello"}]})
    headers = " ".join([*key, "-H 'Content-Type: application/json'"])
    print_text(f"serving {model.facts()}: {address}")
    print_text(f"try: curl {address}/chat/completions {headers} -d {shlex.quote(body)}")
