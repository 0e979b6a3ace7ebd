"""A request: who may send it, its body, and whether its client is still there. What is wrong is an `HttpProblem`."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from burnish.web import HttpProblem, overloaded

JSON = "application/json"
GONE = 499  # the status of a request whose client has left; nobody reads it
READ_AT_MOST = 32 * 1024 * 1024  # of a body that is too large: a client that still sends does not read the answer

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What a client may take. A server has `connections`, or fewer if the process has not so many descriptors."""

    body_bytes: int = 4 * 1024 * 1024
    receiving_bytes: int = 256 * 1024 * 1024  # of all bodies that are arriving
    header_s: float = 20.0  # for the first line and the headers
    body_s: float = 60.0
    read_s: float = 60.0  # in which a client reads none of an answer
    keep_alive_s: float = 60.0  # longer than clients keep a connection: one closed under a request costs a retry
    connections: int = 4096


def bare_app(shape: Callable[[HttpProblem], Response], routes: str, limits: Limits, **options: Any) -> FastAPI:
    """An app without routes; `shape` is how it writes a problem, and `routes` says which there are."""
    app = FastAPI(redoc_url=None, redirect_slashes=False, **options)
    app.state.shape, app.state.limits, app.state.receiving = shape, limits, 0

    @app.exception_handler(HttpProblem)
    async def refuse(request: Request, problem: HttpProblem) -> Response:
        return shape(problem)

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} is not allowed here" if error.status_code == 405 else "unknown address"
        return shape(HttpProblem(error.status_code, f"{what}; {routes}", error.headers))

    return app


def check_key(request: Request, key: str | None) -> None:
    given = request.headers.get("authorization", "").encode("latin-1")
    if key is not None and not hmac.compare_digest(given, f"Bearer {key}".encode()):
        reason = "the API key is missing or wrong; send the header Authorization: Bearer KEY"
        raise HttpProblem(401, reason, {"WWW-Authenticate": "Bearer"})


async def read_body(request: Request) -> bytes:
    # Only JSON: a web page elsewhere can make a browser post a form here, but not this.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise HttpProblem(415, f"send JSON, with the header Content-Type: {JSON}")
    state, limits = request.app.state, request.app.state.limits
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(limits.body_s):
            async for part in request.stream():
                size += len(part)
                if size <= limits.body_bytes:
                    body += part
                    state.receiving += len(part)
                if state.receiving > limits.receiving_bytes:
                    raise overloaded("too many large bodies are arriving")
                if size > READ_AT_MOST:
                    break
    except TimeoutError:
        raise HttpProblem(408, f"the body did not arrive within {limits.body_s:g} s") from None
    except ClientDisconnect:
        raise HttpProblem(GONE, "the client has left") from None
    finally:
        state.receiving -= len(body)
    if size > limits.body_bytes:
        raise HttpProblem(413, f"the body is larger than {limits.body_bytes} bytes")
    return bytes(body)


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """What `work` returns; it is cancelled if the client leaves first. The body must have been read."""

    async def client_left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.ensure_future(work)
    both: list[asyncio.Future[Any]] = [task]
    try:
        await asyncio.sleep(0)
        if not task.done():  # it waits for something, as where not all answers are cached
            both.append(asyncio.ensure_future(client_left()))
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and not task.cancelled():
            return task.result()
        raise HttpProblem(GONE, "the request has ended without an answer")
    finally:
        for each in both:
            each.cancel()
