"""Bytes to JSON and back: request bodies with limits, error responses, server-sent events.

Consumes what uvicorn received, which anyone may have sent.
"""

import asyncio
import json
import logging
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from burnish.openai_wire.fields import ApiError, bad, broken

MAX_BODY_BYTES = 4 * 1024 * 1024
READ_AT_MOST = 8 * MAX_BODY_BYTES  # of a body that is too large: a client that still sends does not read the answer
BODY_DEADLINE_S = 60.0
MAX_DEPTH = 32  # of nested objects and lists
GONE = 499  # the status of a request whose client has left; nobody reads it

logger = logging.getLogger(__name__)


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


async def client_left(request: Request) -> None:
    """Wait until the client has disconnected; only after the body was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def parse_json(body: bytes) -> Any:
    try:
        value = json.loads(body.decode("utf-8"))
        # JSON may contain half a surrogate pair, which neither a tokenizer nor an answer takes.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise bad(f"the body is not readable as JSON: {str(error)[:100] or type(error).__name__}") from None
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return value
        level = [inner for item in containers for inner in (item.values() if isinstance(item, dict) else item)]
    raise bad(f"the body has more than {MAX_DEPTH} nested objects and lists")


def event(data: dict[str, Any]) -> str:
    """One server-sent event."""
    # In ASCII: some clients take U+2028 and its like for the end of a line.
    return f"data: {json.dumps(data)}\n\n"


def as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    logger.error("a request failed", exc_info=error)
    return broken()


def error_response(error: ApiError) -> Response:
    return JSONResponse(error.body, status_code=error.status, headers=error.headers)
