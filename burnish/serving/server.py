"""`burnish serve`: the socket, the signals and the order of start and shutdown.

The port is opened before the model is loaded, so that a wrong port fails at once. Ctrl-C or SIGTERM ends the server:
running requests have `GRACE_S` to finish, then they are aborted with an error. A second Ctrl-C does not wait.
"""

import asyncio
import json
import logging
import os
import shlex
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from burnish.literal import print_text
from burnish.serving.app import ModelService, make_app
from burnish.serving.engine_thread import EngineThread
from burnish.serving.loading import ModelOptions, ServedModel, check, load
from burnish.tracking.watchdog import Watchdog
from burnish.web.requests import Limits
from burnish.web.server import HttpServer, is_local, listen, url

GRACE_S = 5
BACKSTOP_S = 10  # after the grace, for responses that do not end although their sequences did
LIMITS = Limits()

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServeOptions:
    model: ModelOptions
    host: str = "127.0.0.1"
    port: int = 8001
    name: str | None = None
    api_key: str | None = None
    max_waiting: int = 256
    limits: Limits = LIMITS


def serve(options: ServeOptions) -> int:
    """Serve until a signal; the exit code."""
    check(options.model)
    with listen(options.host, options.port) as listener:
        if not is_local(listener) and options.api_key is None:
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
            server = ServeServer(service, ready, options.limits)
            await server.serve(sockets=[listener])
    finally:
        await engine.stop()
    return server.exit_code


class ServeServer(HttpServer):
    """With a grace for running requests."""

    def __init__(self, service: ModelService, ready: Callable[["ServeServer"], None], limits: Limits):
        super().__init__(
            make_app(service, limits),
            ready=lambda: ready(self),
            lifespan="off",
            timeout_graceful_shutdown=GRACE_S + BACKSTOP_S,
        )
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._service.engine.in_flight:
            logger.info("stopping; answers in flight: %d, with %d s to finish", self._service.engine.in_flight, GRACE_S)
        timer = asyncio.get_running_loop().call_later(GRACE_S, self._service.engine.abort)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()


def print_address(model: ServedModel, options: ServeOptions, listener: socket.socket) -> None:
    address = f"{url(listener)}/v1"
    key = ["-H 'Authorization: Bearer KEY'"] if options.api_key else []
    body = json.dumps({"model": model.name, "messages": [{"role": "user", "content": "Hello"}]})
    headers = " ".join([*key, "-H 'Content-Type: application/json'"])
    print_text(f"serving {model.facts()}: {address}")
    print_text(f"try: curl {address}/chat/completions {headers} -d {shlex.quote(body)}")
