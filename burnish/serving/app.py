"""The HTTP routes: a request in, an answer of `answers.py` or a `Problem` out.

Every /v1 route asks for the key where there is one. A body is read (parsed, rendered, tokenised) in a thread, so that a
long prompt does not hold up answers; what would wait long for that thread, or for the engine, is refused before. What
ends a request early (the client leaves, the server stops) aborts its sequences.
"""

import asyncio
import hmac
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from burnish.serving.answers import Answer, ChatAnswer, CompletionAnswer, Generation
from burnish.serving.engine_thread import EngineThread
from burnish.serving.fields import Problem, bad, overloaded, stopping
from burnish.serving.loading import ServedModel
from burnish.serving.requests import Asked, check_model, read_chat, read_completion
from burnish.serving.wire import (
    GONE,
    MAX_BODY_BYTES,
    USAGE,
    AccessLog,
    EventStream,
    client_left,
    parse_json,
    problem_response,
    read_body,
)

ROUTES = "there are POST /v1/chat/completions, POST /v1/completions, GET /v1/models and GET /health"

MAX_RECEIVED = 512  # bodies that may be on their way at the same time
MAX_UNREAD_BYTES = 4 * MAX_BODY_BYTES  # of bodies that wait for the thread that reads them


class Limits:
    """How many sequences the server holds: `running` at once, and `waiting` for their turn."""

    def __init__(self, running: int, waiting: int):
        self.running, self.waiting = running, waiting

    def check(self, wanted: int, in_flight: int) -> None:
        """Refuse what would have to wait behind too many others, or could never be held."""
        most = self.running + self.waiting
        if wanted > most:
            raise bad(f"{wanted} answers in one request; this server holds at most {most} at a time", code="too_many")
        if in_flight + wanted > most:
            raise overloaded(
                f"{in_flight} answers are being generated or wait for it, and this server holds at most {most}; "
                "try again later"
            )


class Service:
    """What the routes share."""

    def __init__(self, model: ServedModel, engine: EngineThread, limits: Limits, api_key: str | None = None):
        self.model, self.engine, self.limits = model, engine, limits
        self.created = int(time.time())
        self._api_key = api_key
        self._received, self._unread_bytes = 0, 0
        # One thread: tokenizers do not promise to be safe in several.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="request-reader")

    def close(self) -> None:
        self._reader.shutdown(wait=False, cancel_futures=True)

    def authorise(self, request: Request) -> None:
        given = request.headers.get("authorization", "").encode("latin-1")
        if self._api_key is not None and not hmac.compare_digest(given, f"Bearer {self._api_key}".encode()):
            raise Problem(
                401,
                "the API key is missing or wrong; send the header Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def answer(
        self, request: Request, read: Callable[[Any, ServedModel], Asked], shape: type[Answer]
    ) -> Response:
        """Read a request, generate, and answer whole or as a stream."""
        self.authorise(request)
        body = await self._receive(request)
        self._check(1)
        asked = await self._read(body, read)
        self._check(asked.count)
        answer = shape(self.model.name)
        generation = Generation(asked, self.model, self.engine, answer.id)
        if asked.stream:
            return EventStream(generation, answer)
        if not await finished(request, generation):
            return Response(status_code=GONE)
        request.scope[USAGE] = generation.usage()
        return JSONResponse(answer.whole(generation.choices, generation.usage()))

    async def _receive(self, request: Request) -> bytes:
        if self._received >= MAX_RECEIVED:
            raise overloaded(f"{self._received} requests are on their way to this server; try again later")
        self._received += 1
        try:
            return await read_body(request)
        finally:
            self._received -= 1

    def _check(self, wanted: int) -> None:
        """Refuse so many answers where the engine has stopped or has too much to do."""
        if not self.engine.alive:
            raise stopping()
        self.limits.check(wanted, self.engine.in_flight)

    async def _read(self, body: bytes, read: Callable[[Any, ServedModel], Asked]) -> Asked:
        if self._unread_bytes + len(body) > MAX_UNREAD_BYTES:
            raise overloaded("too many long prompts wait to be read; try again later")
        self._unread_bytes += len(body)
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._reader, lambda: read(parse_json(body), self.model))
        finally:
            self._unread_bytes -= len(body)


def make_app(service: Service) -> FastAPI:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.add_middleware(AccessLog)

    @app.exception_handler(Problem)
    async def refuse(request: Request, problem: Problem) -> Response:
        return problem_response(problem)

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} is not for this address" if error.status_code == 405 else "there is no such address"
        return problem_response(Problem(error.status_code, f"{what}; {ROUTES}"))

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await service.answer(request, read_chat, ChatAnswer)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await service.answer(request, read_completion, CompletionAnswer)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        service.authorise(request)
        return JSONResponse({"object": "list", "data": [model_card(service)]})

    @app.get("/v1/models/{name:path}")
    async def one_model(request: Request, name: str) -> Response:
        service.authorise(request)
        check_model(name, service.model)
        return JSONResponse(model_card(service))

    @app.get("/health")
    async def health() -> Response:
        engine = service.engine
        status = "stopped" if not engine.alive else "lost" if engine.lost else "ok"
        state = {"status": status, "answers_in_flight": engine.in_flight}
        return JSONResponse(state, status_code=200 if status == "ok" else 503)

    return app


def model_card(service: Service) -> dict[str, Any]:
    model = service.model
    return {
        "id": model.name,
        "object": "model",
        "created": service.created,
        "owned_by": "burnish",
        "max_model_len": model.context,
    }


async def finished(request: Request, generation: Generation) -> bool:
    """Wait for all choices; False where the client left first, and then what still ran is aborted."""
    done, left = asyncio.ensure_future(generation.finish()), asyncio.ensure_future(client_left(request))
    try:
        await asyncio.wait({done, left}, return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            done.result()  # raises what went wrong
        return done.done()
    finally:
        generation.abort()
        done.cancel()
        left.cancel()
