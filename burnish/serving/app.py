"""The HTTP routes: a request in, an answer of `answers.py` or a `Problem` out.

Every /v1 route asks for the key where there is one. A body is read (parsed, rendered, tokenised) in a thread, so that a
long prompt does not hold up other requests. Whatever ends a request early (the client leaves, the server stops) aborts
its sequences.
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

from burnish.serving.answers import Answer, ChatAnswer, CompletionAnswer
from burnish.serving.engine_thread import EngineThread
from burnish.serving.generation import Generation, Limits
from burnish.serving.loading import ServedModel
from burnish.serving.problems import Problem, stopping
from burnish.serving.requests import Asked, check_model, read_chat, read_completion
from burnish.serving.wire import GONE, USAGE, AccessLog, EventStream, parse_json, problem_response, read_body

ROUTES = "there are POST /v1/chat/completions, POST /v1/completions, GET /v1/models and GET /health"


class Service:
    """What the routes share."""

    def __init__(self, model: ServedModel, engine: EngineThread, limits: Limits, api_key: str | None = None):
        self.model, self.engine, self.limits = model, engine, limits
        self.created = int(time.time())
        self._api_key = api_key
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
        body = await read_body(request)
        asked = await asyncio.get_running_loop().run_in_executor(
            self._reader, lambda: read(parse_json(body), self.model)
        )
        if not self.engine.alive:
            raise stopping()
        self.limits.check(asked.count, self.engine.in_flight)
        answer = shape(self.model.name)
        generation = Generation(asked, self.model, self.engine, answer.id)
        if asked.stream:
            return EventStream(generation, answer)
        if not await finished(request, generation):
            return Response(status_code=GONE)
        request.scope[USAGE] = generation.usage()
        return JSONResponse(answer.whole(generation.choices, generation.usage()))


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
        well = service.engine.alive
        state = {"status": "ok" if well else "stopped", "answers_in_flight": service.engine.in_flight}
        return JSONResponse(state, status_code=200 if well else 503)

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
    done, gone = asyncio.ensure_future(generation.finish()), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({done, gone}, return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            done.result()  # raises what went wrong
        return done.done()
    finally:
        generation.abort()
        done.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
