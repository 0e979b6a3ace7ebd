"""The retrieval server: `burnish retriever serve`, or `python -m burnish.search.server` with the same flags.

The port is taken before the index is opened, so that a wrong one costs nothing.
"""

import asyncio
import hashlib
import ipaddress
import json
import logging
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from burnish import __version__
from burnish.errors import ConfigError
from burnish.search.documents import (
    MAX_BODY_BYTES,
    MAX_DOCUMENTS,
    MAX_QUERIES,
    MAX_QUERY_CHARACTERS,
    MAX_TOPK,
    Hit,
    Retriever,
)
from burnish.search.index import open_index
from burnish.search.manifest import MANIFEST
from burnish.search.service import CACHED_DOCUMENTS, CONTENT_TYPE, MAX_WAITING, Overloaded, SearchFailed, SearchService

ROUTES = "there are POST /retrieve, GET /health, GET /metrics and GET /docs"
GRACE_S = 10
KEEP_ALIVE_S = 60  # longer than clients keep a connection: one that is closed under a request costs them a retry
MAX_REQUESTS = 1024  # in flight
RETRY_AFTER_S = 1

JSON = "application/json"
READ_AT_MOST = 4 * MAX_BODY_BYTES  # of a body that is too large: a client that still sends does not hear the answer
BODY_DEADLINE_S = 60.0
MAX_FIELDS = 16  # more are not looked at one by one
NOT_BLANK = r"[^ \t\r\n]"  # not \S, which is another set of characters to each who reads the OpenAPI page
GONE = 499  # the status of a request whose client has left; it is never read
FIELDS = "queries, topk and return_scores"

REFUSALS = {
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the body is not sent as JSON",
    422: "the body is not what it should be; the reason names the field",
    500: "the retriever failed",
    503: "too many requests; Retry-After says when to try again",
}

logger = logging.getLogger(__name__)


def _not_blank(text: str) -> str:
    if not re.search(NOT_BLANK, text):
        raise ValueError("is empty")
    return text


Text = Annotated[
    str,
    Field(min_length=1, max_length=MAX_QUERY_CHARACTERS, json_schema_extra={"pattern": NOT_BLANK}),
    AfterValidator(_not_blank),
]


class Query(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(strict=True, extra="forbid", title="Query")

    queries: Annotated[
        list[Text], Field(min_length=1, max_length=MAX_QUERIES, examples=[["who wrote Faust?"]]), FailFast()
    ]
    # 5.0 is an integer to JSON, which has one kind of number.
    topk: Annotated[int | None, BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n)] = (
        Field(None, ge=1, le=MAX_TOPK, description="documents per query; null: the server's own number")
    )
    return_scores: bool = Field(False, description="a score with each document; else the documents alone")


class DocumentModel(BaseModel):
    id: str
    contents: str = Field(description="the title in quotes on the first line, then the text")


class ScoredDocument(BaseModel):
    document: DocumentModel
    score: float


class Retrieved(BaseModel):
    """One list for each query, in order, the best document first. There may be fewer than `topk`."""

    result: list[list[ScoredDocument]] | list[list[DocumentModel]]


class Health(BaseModel):
    status: Literal["ok"]
    retriever: str
    documents: int
    topk: int = Field(description="documents per query where a request does not set it")
    checksum: str | None = Field(description="of the index")


class ProblemModel(BaseModel):
    detail: str = Field(description="what is wrong")


class HttpProblem(Exception):
    def __init__(self, status: int, detail: str):
        super().__init__(detail)
        self.status = status


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # Half a surrogate pair in a document is no text, and no client could read it.
    body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    return Response(body, status, headers, media_type=JSON)


def found_response(lists: Sequence[Sequence[Hit]], return_scores: bool) -> Response:
    def item(hit: Hit) -> dict[str, Any]:
        document = {"id": hit.document.id, "contents": hit.document.contents}
        return {"document": document, "score": float(hit.score)} if return_scores else document  # may be numpy's

    return json_response({"result": [[item(hit) for hit in hits] for hits in lists]})


def make_app(
    retriever: Retriever,
    *,
    topk: int = 3,
    cached_documents: int = CACHED_DOCUMENTS,
    max_waiting: int = MAX_WAITING,
    checksum: str | None = None,
) -> FastAPI:
    """The routes over any retriever. `topk` is for requests that do not set it; `checksum` is shown by /health."""
    service = SearchService(retriever, cached_documents=cached_documents, max_waiting=max_waiting)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="burnish retriever", version=__version__, redoc_url=None, redirect_slashes=False, lifespan=lifespan
    )

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} is not for this address" if error.status_code == 405 else "there is no such address"
        return json_response({"detail": f"{what}; {ROUTES}"}, error.status_code, dict(error.headers or {}))

    @app.post(
        "/retrieve",
        response_model=Retrieved,
        responses={code: {"model": ProblemModel, "description": why} for code, why in REFUSALS.items()},
        openapi_extra={"requestBody": {"required": True, "content": {JSON: {"schema": Query.model_json_schema()}}}},
    )
    async def retrieve(request: Request) -> Response:
        """The documents that match each query best."""
        begin = time.perf_counter()
        service.metrics.in_flight += 1
        try:
            if service.metrics.in_flight > MAX_REQUESTS:
                raise Overloaded(f"{MAX_REQUESTS} requests are in flight")
            query, documents = await read_query(request, topk)
            response = found_response(await service.search(query.queries, documents), query.return_scores)
        except Overloaded as error:
            detail = f"{error}; try again later"
            response = json_response({"detail": detail}, 503, {"Retry-After": str(RETRY_AFTER_S)})
        except SearchFailed as error:
            response = json_response({"detail": str(error)}, 500)
        except HttpProblem as problem:
            response = json_response({"detail": str(problem)}, problem.status)
        finally:
            service.metrics.in_flight -= 1
        service.metrics.observe(response.status_code, time.perf_counter() - begin)
        return response

    @app.get("/health", response_model=Health)
    async def health() -> Response:
        """What is served."""
        known = {"retriever": retriever.name, "documents": len(retriever), "topk": topk, "checksum": checksum}
        return json_response({"status": "ok", **known})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counters for Prometheus."""
        gauges = {
            "queries_waiting": ("queries that wait for the retriever", service.waiting),
            "cached_documents": ("documents that the cache holds", service.cache.documents),
            "documents": ("documents in the index", len(retriever)),
        }
        return Response(service.metrics.text(gauges), media_type=CONTENT_TYPE)

    return app


async def read_query(request: Request, default_topk: int) -> tuple[Query, int]:
    body = await _read_body(request)
    try:
        value = from_json(body)
    except ValueError as error:
        raise HttpProblem(422, f"the body is not readable as JSON: {error}") from None
    if not isinstance(value, dict) or len(value) > MAX_FIELDS:
        raise HttpProblem(422, f"the body: expected an object with the fields {FIELDS}")
    try:
        query = Query.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        name, *rest = first["loc"]
        if first["type"] == "extra_forbidden":
            raise HttpProblem(422, f"{str(name)[:100]}: there is no such field; there are {FIELDS}") from None
        place = "".join(f"[{part}]" for part in rest)
        raise HttpProblem(422, f"{name}{place}: {first['msg'].removeprefix('Value error, ')}") from None
    topk = default_topk if query.topk is None else query.topk
    if len(query.queries) * topk > MAX_DOCUMENTS:
        raise HttpProblem(
            422, f"queries: {len(query.queries)} with topk={topk} are more than {MAX_DOCUMENTS} documents; send fewer"
        )
    return query, topk


async def _read_body(request: Request) -> bytes:
    # Only JSON: a web page elsewhere can make a browser post a form here, but not this.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise HttpProblem(415, f"send JSON, with the header Content-Type: {JSON}")
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_DEADLINE_S):
            async for part in request.stream():
                size += len(part)
                body += part if size <= MAX_BODY_BYTES else b""
                if size > READ_AT_MOST:
                    break
    except TimeoutError:
        raise HttpProblem(408, f"the body did not arrive within {BODY_DEADLINE_S:.0f} s") from None
    except ClientDisconnect:
        raise HttpProblem(GONE, "the client has left") from None
    if size > MAX_BODY_BYTES:
        raise HttpProblem(413, f"the body is larger than {MAX_BODY_BYTES} bytes; send fewer queries at a time")
    return bytes(body)


def serve(index: Path, host: str, port: int, topk: int, cached_documents: int, **how: Any) -> int:
    """The server over an index, until a signal; `how` as in `open_index`."""
    with listen(host, port) as listener:
        if not ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback:
            logger.warning("--host %s: any machine that reaches this one may search the index", host)
        retriever = open_index(index, **how)
        # The manifest holds the checksums of all other files.
        checksum = hashlib.sha256((index / MANIFEST).read_bytes()).hexdigest()
        app = make_app(retriever, topk=topk, cached_documents=cached_documents, checksum=checksum)
        return run(app, listener, f"{len(retriever)} documents ({retriever.name})")


def run(app: FastAPI, listener: socket.socket, what: str) -> int:
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        log_level="warning",
        ws="none",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    server, signals = uvicorn.Server(config), list[int]()

    # Has the signals until uvicorn takes them over, and once more when it is done: here they become an exit code.
    def stop(number: int, _: object) -> None:
        signals.append(number)
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    print(f"serving {what}: {address(listener)}/retrieve", flush=True)
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 130 if signal.SIGINT in signals else 0


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=socket.SOMAXCONN)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"cannot listen on --host {host} --port {port}: {getattr(error, 'strerror', None) or error}; take another "
            "port (0: any that is free), and 127.0.0.1 or 0.0.0.0 (all) as the host"
        ) from error
    # For the connections, which inherit it: without, the body of each answer waits 40 ms for the client's kernel.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


if __name__ == "__main__":
    from burnish.entry.ending import leave
    from burnish.entry.guard import guard
    from burnish.search.serve_command import main

    leave(guard(main, sys.argv[1:]))
