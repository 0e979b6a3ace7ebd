"""The retrieval server: `burnish retriever serve`, or `python -m burnish.search.server` with the same flags.

The port is taken before the index is opened, so that a wrong one costs nothing.
"""

import hashlib
import json
import logging
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError
from pydantic_core import from_json

from burnish import __version__
from burnish.literal import print_text
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
from burnish.search.service import CACHED_DOCUMENTS, CONTENT_TYPE, MAX_WAITING, SearchService
from burnish.web import HttpProblem, overloaded
from burnish.web.requests import JSON, Limits, bare_app, check_key, read_body, while_connected
from burnish.web.server import HttpServer, is_local, listen, url

ROUTES = "there are POST /retrieve, GET /health, GET /metrics and GET /docs"
GRACE_S = 10
MAX_REQUESTS = 1024  # in flight
LIMITS = Limits(body_bytes=MAX_BODY_BYTES)

MAX_FIELDS = 16  # more are not looked at one by one
NOT_BLANK = r"[^ \t\r\n]"  # not \S, which is another set of characters to each who reads the OpenAPI page
FIELDS = "queries, topk and return_scores"

REFUSALS = {
    401: "the API key is missing or wrong",
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


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # Half a surrogate pair in a document is no text, and no client could read it.
    body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    return Response(body, status, headers, media_type=JSON)


def problem_response(problem: HttpProblem) -> Response:
    return json_response({"detail": str(problem)}, problem.status, problem.headers)


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
    api_key: str | None = None,
    limits: Limits = LIMITS,
) -> FastAPI:
    """The routes over any retriever. `topk` is for requests that do not set it; `checksum` is shown by /health."""
    service = SearchService(retriever, cached_documents=cached_documents, max_waiting=max_waiting)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    named = {"title": "burnish retriever", "version": __version__}
    app = bare_app(problem_response, ROUTES, limits, lifespan=lifespan, **named)

    @app.post(
        "/retrieve",
        response_model=Retrieved,
        responses={code: {"model": ProblemModel, "description": why} for code, why in REFUSALS.items()},
        openapi_extra={"requestBody": {"required": True, "content": {JSON: {"schema": Query.model_json_schema()}}}},
    )
    async def retrieve(request: Request) -> Response:
        """The documents that match each query best."""
        begin = time.perf_counter()
        try:
            check_key(request, api_key)
            query, documents = await read_query(request, topk)
            if service.metrics.in_flight >= MAX_REQUESTS:
                raise overloaded(f"{MAX_REQUESTS} requests are in flight")
            hits = await while_connected(request, service.search(query.queries, documents))
            response = found_response(hits, query.return_scores)
        except HttpProblem as problem:
            response = problem_response(problem)
        service.metrics.observe(response.status_code, time.perf_counter() - begin)
        return response

    @app.get("/health", response_model=Health)
    async def health() -> Response:
        """What is served."""
        known = {"retriever": retriever.name, "documents": len(retriever), "topk": topk, "checksum": checksum}
        return json_response({"status": "ok", **known})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """Counters for Prometheus."""
        check_key(request, api_key)
        gauges = {
            "queries_waiting": ("queries that wait for the retriever", service.waiting),
            "cached_documents": ("documents that the cache holds", service.cache.documents),
            "documents": ("documents in the index", len(retriever)),
        }
        return Response(service.metrics.text(gauges), media_type=CONTENT_TYPE)

    return app


async def read_query(request: Request, default_topk: int) -> tuple[Query, int]:
    body = await read_body(request)
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


def serve(
    index: Path, host: str, port: int, topk: int, cached_documents: int, api_key: str | None = None, **how: Any
) -> int:
    """The server over an index, until a signal; `how` as in `open_index`."""
    with listen(host, port) as listener:
        if not is_local(listener) and api_key is None:
            logger.warning("--host %s without --api-key: any machine that reaches this one may search the index", host)
        retriever = open_index(index, **how)
        # The manifest holds the checksums of all other files.
        checksum = hashlib.sha256((index / MANIFEST).read_bytes()).hexdigest()
        app = make_app(retriever, topk=topk, cached_documents=cached_documents, checksum=checksum, api_key=api_key)
        return run(app, listener, f"{len(retriever)} documents ({retriever.name})")


def run(app: FastAPI, listener: socket.socket, what: str) -> int:
    def ready() -> None:
        print_text(f"serving {what}: {url(listener)}/retrieve")

    server = HttpServer(app, ready, lifespan="on", timeout_graceful_shutdown=GRACE_S)
    server.run(sockets=[listener])
    return server.exit_code


if __name__ == "__main__":
    from burnish.entry.ending import leave
    from burnish.entry.guard import guard
    from burnish.search.serve_command import main

    leave(guard(main, sys.argv[1:]))
