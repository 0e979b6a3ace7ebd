"""The HTTP routes: a request in, an answer or an `ApiError` out; and one request while it is generated.

A body is parsed, rendered and tokenised in a thread, so that a long prompt does not hold up answers; requests that
would wait long for that thread, or for the engine, are refused at once.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from burnish.openai_wire import http
from burnish.openai_wire.answers import AnswerFormat, ChatAnswer, Choice, CompletionAnswer, Delta, usage
from burnish.openai_wire.fields import bad, stopping
from burnish.rollout.base import Completion
from burnish.serving.engine_thread import EngineThread, Event
from burnish.serving.loading import ServedModel
from burnish.serving.requests import ServeRequest, check_model, read_chat, read_completion
from burnish.web import overloaded
from burnish.web.requests import Limits, check_key, read_body, while_connected

logger = logging.getLogger(__name__)

MAX_UNREAD_BYTES = 16 * 1024 * 1024  # of bodies that wait for the thread that reads them
USAGE = "burnish.usage"  # the key in a request's scope under which its token counts are left for the access log


class ServedGeneration:
    """Starts generating when it is made. Read `deltas` to their end; `abort` if nobody reads any more."""

    def __init__(self, request: ServeRequest, model: ServedModel, engine: EngineThread, request_id: str):
        self.request = request
        self.choices: list[Choice] = []
        self._engine = engine
        # Unbounded, but it holds no more than the request's tokens, however slowly it is read.
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._running: dict[int, str] = {}  # index of a choice → the engine's request
        for index, (prompt, sampling) in enumerate(request.sequences()):
            choice = Choice(index, model.tokenizer, model.special_ids, sampling.stop, request.log_probs)
            self.choices.append(choice)
            self._running[index] = f"{request_id}/{index}"
            engine.submit(self._running[index], prompt, sampling, partial(self._take, index))

    def _take(self, index: int, event: Event) -> None:
        self._events.put_nowait((index, event))

    async def deltas(self) -> AsyncIterator[Delta]:
        """What is new, as it comes; waits for the engine, which always ends a sequence with a last event."""
        while self._running:
            index, event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            if isinstance(event, Completion):
                del self._running[index]
                if event.finish_reason == "abort":  # not by this reader, which would no longer be here
                    raise stopping()
            delta = self.choices[index].take(event)
            if delta:
                yield delta

    async def finish(self) -> dict[str, int]:
        async for _ in self.deltas():
            pass
        return self.usage()

    def usage(self) -> dict[str, int]:
        return usage(self.request.prompts, self.choices)

    def abort(self) -> None:
        self._engine.abort(list(self._running.values()))


class EventStream(StreamingResponse):
    def __init__(self, generation: ServedGeneration, answer: AnswerFormat):
        self._generation, self._answer = generation, answer
        super().__init__(self._events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # also if the client has left
            scope[USAGE] = self._generation.usage()
            self._generation.abort()

    async def _events(self) -> AsyncIterator[str]:
        generation, answer = self._generation, self._answer
        extra = {"usage": None} if generation.request.include_usage else {}
        try:
            for choice in generation.choices:
                if opening := answer.first_chunk(choice.index):
                    yield http.event(opening | extra)
            async for delta in generation.deltas():
                yield http.event(answer.chunk(delta) | extra)
        except Exception as error:  # noqa: BLE001 (the boundary: the status is sent, so it goes into the stream)
            yield http.event(http.as_api_error(error).body)
            return
        if generation.request.include_usage:
            yield http.event(answer.usage_chunk(generation.usage()))
        yield http.DONE


class ModelService:
    """What the routes share. It holds at most `most` sequences, running or waiting for their turn."""

    def __init__(self, model: ServedModel, engine: EngineThread, most: int, api_key: str | None = None):
        self.model, self.engine, self.most = model, engine, most
        self.card: dict[str, Any] = {"id": model.name, "object": "model", "created": int(time.time())}
        self.card |= {"owned_by": "burnish", "max_model_len": model.context}
        self._api_key = api_key
        self._unread_bytes = 0
        # One thread: tokenizers are not promised to be thread-safe.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="request-reader")

    def close(self) -> None:
        self._reader.shutdown(wait=False, cancel_futures=True)

    def authorise(self, request: Request) -> None:
        check_key(request, self._api_key)

    async def answer(
        self, request: Request, read: Callable[[Any, ServedModel], ServeRequest], shape: type[AnswerFormat]
    ) -> Response:
        self.authorise(request)
        body = await read_body(request)
        self._check(1)
        if self._unread_bytes + len(body) > MAX_UNREAD_BYTES:
            raise overloaded("too many long prompts wait to be read")
        self._unread_bytes += len(body)
        try:
            loop = asyncio.get_running_loop()
            reading = loop.run_in_executor(self._reader, lambda: read(http.parse_json(body), self.model))
            asked = await while_connected(request, reading)
        finally:
            self._unread_bytes -= len(body)
        self._check(asked.count)
        answer = shape(self.model.name)
        generation = ServedGeneration(asked, self.model, self.engine, answer.id)
        if asked.stream:
            return EventStream(generation, answer)
        try:
            usage = await while_connected(request, generation.finish())
        finally:
            generation.abort()  # what still runs
        request.scope[USAGE] = usage
        return JSONResponse(answer.whole(generation.choices, usage))

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
                f"{in_flight} answers are being generated or waiting, and this server holds at most {self.most}"
            )


def make_app(service: ModelService, limits: Limits) -> FastAPI:
    app = http.openai_app("use POST /v1/chat/completions, POST /v1/completions, GET /v1/models or GET /health", limits)
    app.add_middleware(AccessLog)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await service.answer(request, read_chat, ChatAnswer)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await service.answer(request, read_completion, CompletionAnswer)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        service.authorise(request)
        return JSONResponse({"object": "list", "data": [service.card]})

    @app.get("/v1/models/{name:path}")
    async def one_model(request: Request, name: str) -> Response:
        service.authorise(request)
        check_model(name, service.model)
        return JSONResponse(service.card)

    @app.get("/health")
    async def health() -> Response:
        engine = service.engine
        status = "stopped" if not engine.alive else "lost" if engine.lost else "ok"
        state = {"status": status, "answers_in_flight": engine.in_flight}
        return JSONResponse(state, status_code=200 if status == "ok" else 503)

    return app


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
            failure = http.error_response(error)
            if not status:
                await failure(scope, receive, watch)
        finally:
            level = logging.DEBUG if scope["path"] == "/health" else logging.INFO  # probes come every few seconds
            # Not decoded: it may have line breaks then.
            path = scope.get("raw_path", b"").decode("ascii", "backslashreplace")[:80]
            counts = scope.get(USAGE)
            tokens = f" {counts['prompt_tokens']}+{counts['completion_tokens']} tokens" if counts else ""
            seconds = time.perf_counter() - begin
            logger.log(level, "%s %s %s%s %.2f s", scope["method"], path, status or "gone", tokens, seconds)
