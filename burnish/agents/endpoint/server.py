"""HTTP for programs that are trained: POST /v1/chat/completions and GET /v1/models on 127.0.0.1, at any free port.

It runs on the event loop of the trajectories, between the steps of the rollout engine: the first `admit` opens the
port, the last one to leave closes it. Each trajectory has its own key, valid while its program runs.
"""

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakKeyDictionary

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from burnish.agents.endpoint.session import Session
from burnish.openai_wire.http import openai_app, parse_json
from burnish.web import HttpProblem
from burnish.web.requests import Limits, read_body, while_connected
from burnish.web.server import HttpServer, listen, url

# A program may think for long between two calls, and there may be many.
LIMITS = Limits(keep_alive_s=600.0, connections=65_536)
GRACE_S = 5  # for requests whose connection is closed
_open: "WeakKeyDictionary[asyncio.AbstractEventLoop, Endpoint]" = WeakKeyDictionary()


@asynccontextmanager
async def admit(session: Session) -> AsyncIterator[tuple[str, str]]:
    """The address and the key by which a program reaches `session`, inside this block."""
    loop = asyncio.get_running_loop()
    endpoint = _open.get(loop)
    if endpoint is None:
        endpoint = _open[loop] = Endpoint()
    key = f"trajectory-{secrets.token_urlsafe(24)}"
    endpoint.sessions[key] = session
    try:
        yield endpoint.url, key
    finally:
        del endpoint.sessions[key]
        session.close()
        if not endpoint.sessions:
            del _open[loop]  # before it waits: whoever comes meanwhile opens another
            await endpoint.close()


class Endpoint(HttpServer):
    """One port, and the sessions by their key. It runs in the event loop that made it, and handles no signals."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        super().__init__(make_app(self.sessions), lifespan="off")
        # It listens at once, so that nobody has to wait until it is served.
        listener = listen("127.0.0.1", 0)
        self.url = f"{url(listener)}/v1"
        self._leave = asyncio.Event()
        self._serving = asyncio.create_task(self.serve(sockets=[listener]), name="agent-endpoint")

    async def close(self) -> None:
        self._leave.set()
        await self._serving

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self._leave.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """At once: clients that are still connected have no trajectory any more."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.close()  # which ends its request, if one runs
        running = set(self.server_state.tasks)
        if running:
            _, stuck = await asyncio.wait(running, timeout=GRACE_S)
            for task in stuck:
                task.cancel()


def make_app(sessions: dict[str, Session]) -> FastAPI:
    app = openai_app("there are POST /v1/chat/completions and GET /v1/models", LIMITS)
    card = {"id": "policy", "object": "model", "created": int(time.time()), "owned_by": "burnish"}

    def session_of(request: Request) -> Session:
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        if kind != "Bearer" or key not in sessions:
            reason = "no trajectory that runs has this API key; use the one that the program was given, while it runs"
            raise HttpProblem(401, reason, {"WWW-Authenticate": "Bearer"})
        return sessions[key]

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        session = session_of(request)
        body = parse_json(await read_body(request))
        reply = await while_connected(request, session.answer(body))
        if reply.request.stream:
            return StreamingResponse(reply.events(), media_type="text/event-stream")
        return JSONResponse(reply.whole())

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        session_of(request)
        return JSONResponse({"object": "list", "data": [card]})

    return app
