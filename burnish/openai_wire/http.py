"""HTTP as both servers speak it: bodies that anyone may have sent, error responses, server-sent events."""

import asyncio
import json
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from burnish.openai_wire.fields import ApiError, bad, broken, is_deep

MAX_BODY_BYTES = 4 * 1024 * 1024
READ_AT_MOST = 8 * MAX_BODY_BYTES  # of a body that is too large: a client that still sends does not read the answer
BODY_DEADLINE_S = 60.0
MAX_DEPTH = 32  # of nested objects and lists
DONE = "data: [DONE]\n\n"  # the last server-sent event
GONE = 499  # the status of a request whose client has left; nobody reads it

logger = logging.getLogger(__name__)
T = TypeVar("T")


def bare_app(routes: str) -> FastAPI:
    """An app without routes, whose errors have OpenAI's shape; `routes` says which there are."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.exception_handler(ApiError)
    async def refuse(request: Request, error: ApiError) -> Response:
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} is not allowed here" if error.status_code == 405 else "unknown address"
        return error_response(ApiError(error.status_code, f"{what}; {routes}"))

    return app


def server_config(app: FastAPI, **more: Any) -> uvicorn.Config:
    """Plain HTTP, and nothing logged but warnings."""
    quiet: dict[str, Any] = {"access_log": False, "log_config": None, "log_level": "warning", "server_header": False}
    return uvicorn.Config(app, lifespan="off", http="h11", ws="none", **quiet, **more)


async def read_body(request: Request) -> bytes:
    # Only JSON: a web page elsewhere can make a browser post a form here, but not this.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise bad("send JSON, with the header Content-Type: application/json")
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_DEADLINE_S):
            async for part in request.stream():
                size += len(part)
                body += part if size <= MAX_BODY_BYTES else b""
                if size > READ_AT_MOST:
                    break
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_DEADLINE_S:.0f} s") from None
    except ClientDisconnect:
        raise ApiError(GONE, "the client has left") from None
    if size > MAX_BODY_BYTES:
        raise ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="too_large")
    return bytes(body)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` returns; None if it was cancelled, or if the client left first. The body must have been read."""

    async def client_left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, left = asyncio.ensure_future(work), asyncio.ensure_future(client_left())
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() and not task.cancelled() else None
    finally:
        task.cancel()
        left.cancel()


def parse_json(body: bytes) -> Any:
    try:
        value = json.loads(body.decode("utf-8"))
        # JSON may contain half a surrogate pair, which neither a tokenizer nor an answer takes.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise bad(f"the body is not readable as JSON: {str(error)[:100] or type(error).__name__}") from None
    if is_deep(value, MAX_DEPTH):
        raise bad(f"the body has more than {MAX_DEPTH} nested objects and lists")
    return value


def event(data: dict[str, Any]) -> str:
    # In ASCII: some clients take U+2028 and its like for the end of a line.
    return f"data: {json.dumps(data)}\n\n"


def as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    logger.error("a request failed", exc_info=error)
    return broken()


def error_response(error: ApiError) -> Response:
    return JSONResponse(error.body, status_code=error.status, headers=error.headers)
