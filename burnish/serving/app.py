"""The HTTP routes: a request in, an answer or an `ApiError` out.

Every /v1 route asks for the key if there is one. A body is parsed, rendered and tokenised in a thread, so that a long
prompt does not hold up answers; requests that would wait long for that thread, or for the engine, are refused at once.
When the client leaves or the server stops, the sequences of a request are aborted.
"""

import asyncio
import hmac
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from burnish.openai_wire.answers import AnswerFormat, ChatAnswer, CompletionAnswer
from burnish.openai_wire.fields import ApiError, bad, overloaded, stopping
from burnish.openai_wire.http import (
    GONE,
    MAX_BODY_BYTES,
    as_api_error,
    client_left,
    error_response,
    parse_json,
    read_body,
)
from burnish.serving.engine_thread import EngineThread
from burnish.serving.generation import USAGE, EventStream, ServedGeneration
from burnish.serving.loading import ServedModel
from burnish.serving.requests import ServeRequest, check_model, read_chat, read_completion

logger = logging.getLogger(__name__)

ROUTES = "use POST /v1/chat/completions, POST /v1/completions, GET /v1/models or GET /health"

MAX_RECEIVED = 512  # bodies received at the same time
MAX_UNREAD_BYTES = 4 * MAX_BODY_BYTES  # of bodies that wait for the thread that reads them


class ModelService:
    """What the routes share. It holds at most `most` sequences, running or waiting for their turn."""

    def __init__(self, model: ServedModel, engine: EngineThread, most: int, api_key: str | None = None):
        self.model, self.engine, self.most = model, engine, most
        self.created = int(time.time())
        self._api_key = api_key
        self._received, self._unread_bytes = 0, 0
        # One thread: tokenizers are not promised to be thread-safe.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="request-reader")

    def close(self) -> None:
        self._reader.shutdown(wait=False, cancel_futures=True)

    def authorise(self, request: Request) -> None:
        given = request.headers.get("authorization", "").encode("latin-1")
        if self._api_key is not None and not hmac.compare_digest(given, f"Bearer {self._api_key}".encode()):
            raise ApiError(
                401,
                "the API key is missing or wrong; send the header Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def answer(
        self, request: Request, read: Callable[[Any, ServedModel], ServeRequest], shape: type[AnswerFormat]
    ) -> Response:
        """Read a request, generate, and answer whole or as a stream."""
        self.authorise(request)
        if self._received >= MAX_RECEIVED:
            raise overloaded(f"{self._received} requests are being received by this server; try again later")
        self._received += 1
        try:
            body = await read_body(request)
        finally:
            self._received -= 1
        self._check(1)
        if self._unread_bytes + len(body) > MAX_UNREAD_BYTES:
            raise overloaded("too many long prompts wait to be read; try again later")
        self._unread_bytes += len(body)
        try:
            loop = asyncio.get_running_loop()
            asked = await loop.run_in_executor(self._reader, lambda: read(parse_json(body), self.model))
        finally:
            self._unread_bytes -= len(body)
        self._check(asked.count)
        answer = shape(self.model.name)
        generation = ServedGeneration(asked, self.model, self.engine, answer.id)
        if asked.stream:
            return EventStream(generation, answer)
        if not await finished(request, generation):
            return Response(status_code=GONE)
        request.scope[USAGE] = generation.usage()
        return JSONResponse(answer.whole(generation.choices, generation.usage()))

    def _check(self, wanted: int) -> None:
        """Refuse so many answers if the engine has stopped or has too much to do."""
        if not self.engine.alive:
            raise stopping()
        if wanted > self.most:
            held = f"this server holds at most {self.most} at a time"
            raise bad(f"{wanted} answers in one request; {held}", code="too_many")
        in_flight = self.engine.in_flight
        if in_flight + wanted > self.most:
            raise overloaded(
                f"{in_flight} answers are being generated or waiting, and this server holds at most {self.most}; "
                "try again later"
            )


def make_app(service: ModelService) -> FastAPI:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.add_middleware(AccessLog)

    @app.exception_handler(ApiError)
    async def refuse(request: Request, error: ApiError) -> Response:
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} is not allowed here" if error.status_code == 405 else "unknown address"
        return error_response(ApiError(error.status_code, f"{what}; {ROUTES}"))

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


def model_card(service: ModelService) -> dict[str, Any]:
    model = service.model
    return {
        "id": model.name,
        "object": "model",
        "created": service.created,
        "owned_by": "burnish",
        "max_model_len": model.context,
    }


async def finished(request: Request, generation: ServedGeneration) -> bool:
    """Wait for all choices; False if the client left first, and what still ran was aborted."""
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


class AccessLog:
    """Logs one line per finished request; the last boundary for unexpected errors."""

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
            failure = as_api_error(error)
            if not status:
                await error_response(failure)(scope, receive, watch)
        finally:
            level = logging.DEBUG if scope["path"] == "/health" else logging.INFO  # probes come every few seconds
            path = scope.get("raw_path", b"").decode("ascii", "backslashreplace")[
                :80
            ]  # decoded it may have line breaks
            counts = scope.get(USAGE)
            tokens = f" {counts['prompt_tokens']}+{counts['completion_tokens']} tokens" if counts else ""
            seconds = time.perf_counter() - begin
            logger.log(level, "%s %s %s%s %.2f s", scope["method"], path, status or "gone", tokens, seconds)
