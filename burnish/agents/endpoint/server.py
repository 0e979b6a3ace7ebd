"""HTTP for programs that are trained: POST /v1/chat/completions and GET /v1/models on 127.0.0.1, at any free port.

It runs on the event loop of the trajectories, between the steps of the rollout engine, while at least one of them needs
it: the first `admit` opens the port, the last one to leave closes it. Each trajectory has its own key, which is valid
while the trajectory's program runs.
"""

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from burnish.agents.endpoint.session import Session
from burnish.openai_wire.fields import ApiError
from burnish.openai_wire.http import GONE, client_left, error_response, parse_json, read_body

BACKLOG = 4096  # programs that may connect at the same moment
GRACE_S = 5  # for requests whose connection is closed
ROUTES = "there are POST /v1/chat/completions and GET /v1/models"
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


class Endpoint:
    """One port, and the sessions by their key. Made in a running event loop."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        # It listens at once, so that nobody has to wait until it is served.
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        self._server = EndpointServer(make_app(self.sessions))
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="agent-endpoint")

    async def close(self) -> None:
        self._server.leave.set()
        await self._serving


class EndpointServer(uvicorn.Server):
    """uvicorn in another owner's event loop: it handles no signals, and stops when `leave` is set."""

    def __init__(self, app: FastAPI):
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,
                log_config=None,
                log_level="warning",
                lifespan="off",
                http="h11",
                ws="none",
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=600,  # a program may think for long between two calls
            )
        )
        self.leave = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.leave.wait()

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
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    created = int(time.time())

    @app.exception_handler(ApiError)
    async def refuse(request: Request, error: ApiError) -> Response:
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        return error_response(ApiError(error.status_code, f"there is no such address here; {ROUTES}"))

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        session = session_of(request, sessions)
        body = parse_json(await read_body(request))
        reply = asyncio.ensure_future(session.answer(body))
        left = asyncio.ensure_future(client_left(request))
        try:
            await asyncio.wait({reply, left}, return_when=asyncio.FIRST_COMPLETED)
            if not reply.done() or reply.cancelled():
                return Response(status_code=GONE)
            if reply.result().request.stream:
                return StreamingResponse(reply.result().events(), media_type="text/event-stream")
            return JSONResponse(reply.result().whole())
        finally:
            reply.cancel()
            left.cancel()

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        session_of(request, sessions)
        card: dict[str, Any] = {"id": "policy", "object": "model", "created": created, "owned_by": "burnish"}
        return JSONResponse({"object": "list", "data": [card]})

    return app


def session_of(request: Request, sessions: dict[str, Session]) -> Session:
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    if kind != "Bearer" or key not in sessions:
        raise ApiError(
            401,
            "no trajectory that runs has this API key; use the one that the program was given, while it runs",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return sessions[key]
