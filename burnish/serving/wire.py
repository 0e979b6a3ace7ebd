"""Bytes to JSON and answers to bytes: bodies with bounds, server-sent events, error responses, the access log.

Consumes what uvicorn hands over, which anyone may have sent; `app.py` says what is done with it.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from burnish.serving.answers import Answer, Generation
from burnish.serving.fields import Problem, bad, broken

MAX_BODY_BYTES = 4 * 1024 * 1024
READ_AT_MOST = 8 * MAX_BODY_BYTES  # of one that is too large: a client that still sends does not hear the answer
BODY_DEADLINE_S = 60.0
MAX_DEPTH = 32  # objects and lists in each other
GONE = 499  # the status of a request whose client has left; nobody reads it
USAGE = "burnish.usage"  # where in the scope of a request its token counts are left for the access log

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
        raise Problem(408, f"the body did not arrive within {BODY_DEADLINE_S:.0f} s") from None
    except ClientDisconnect:
        raise Problem(GONE, "the client has left") from None
    if size > MAX_BODY_BYTES:
        raise Problem(413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="too_large")
    return bytes(body)


async def client_left(request: Request) -> None:
    """Wait until the client of a request whose body is read has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def parse_json(body: bytes) -> Any:
    try:
        value = json.loads(body.decode("utf-8"))
        # Half a surrogate pair may be written in JSON, but is no text: neither a tokenizer nor an answer takes it.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise bad(f"the body is not readable as JSON: {str(error)[:100] or type(error).__name__}") from None
    if _deeper(value, MAX_DEPTH):
        raise bad(f"the body has more than {MAX_DEPTH} objects and lists in each other")
    return value


def _deeper(value: Any, depth: int) -> bool:
    """Whether objects and lists are in each other more than `depth` times."""
    level = [value]
    for _ in range(depth + 1):
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [inner for item in containers for inner in (item.values() if isinstance(item, dict) else item)]
        if not containers:
            return False
    return True


class EventStream(StreamingResponse):
    """Server-sent events of one answer."""

    def __init__(self, generation: Generation, answer: Answer):
        self._generation, self._answer = generation, answer
        super().__init__(self._events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # also where the client has left
            scope[USAGE] = self._generation.usage()
            self._generation.abort()

    async def _events(self) -> AsyncIterator[str]:
        generation, answer = self._generation, self._answer
        extra = {"usage": None} if generation.asked.include_usage else {}
        try:
            for choice in generation.choices:
                if opening := answer.first_chunk(choice.index):
                    yield event(opening | extra)
            async for delta in generation.deltas():
                yield event(answer.chunk(delta) | extra)
        except Exception as error:  # noqa: BLE001 (the boundary: the status is sent, so it goes into the stream)
            yield event(as_problem(error).body)
            return
        if generation.asked.include_usage:
            yield event(answer.usage_chunk(generation.usage()))
        yield "data: [DONE]\n\n"


def event(data: dict[str, Any]) -> str:
    """One server-sent event."""
    # In ASCII: some clients take U+2028 and its like for the end of a line.
    return f"data: {json.dumps(data)}\n\n"


def as_problem(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    logger.error("a request failed", exc_info=error)
    return broken()


def problem_response(problem: Problem) -> Response:
    return JSONResponse(problem.body, status_code=problem.status, headers=problem.headers)


class AccessLog:
    """One line for each request when it is over, and the last boundary of errors nobody foresaw."""

    def __init__(self, app: Any):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def watch(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        begin = time.perf_counter()
        try:
            await self._app(scope, receive, watch)
        except Exception as error:  # noqa: BLE001 (the boundary of a request)
            problem = as_problem(error)
            if not status:
                await problem_response(problem)(scope, receive, watch)
        finally:
            level = logging.DEBUG if scope["path"] == "/health" else logging.INFO  # probes come every few seconds
            logger.log(level, "%s", access_line(scope, status, time.perf_counter() - begin))


def access_line(scope: Scope, status: int, seconds: float) -> str:
    # The raw path: decoded, it may hold line breaks and worse.
    path = scope.get("raw_path", b"").decode("ascii", "backslashreplace")[:80]
    counts = scope.get(USAGE)
    tokens = f" {counts['prompt_tokens']}+{counts['completion_tokens']} tokens" if counts else ""
    return f"{scope['method']} {path} {status or 'gone'}{tokens} {seconds:.2f} s"
