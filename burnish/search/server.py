"""The retrieval server: `burnish retriever serve`, or `python -m burnish.search.server` with the same flags.

Consumes an index that `burnish retriever index` built; answers POST /retrieve, GET /health, GET /metrics, and shows
its API at /docs. The port is taken before the index is opened, so that a wrong one costs nothing. Ctrl-C or SIGTERM
ends it: no new connections, requests in flight have `GRACE_S` to finish, then the call of the retriever that runs ends.
"""

import hashlib
import ipaddress
import logging
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from starlette.exceptions import HTTPException

from burnish import __version__
from burnish.errors import ConfigError
from burnish.search.documents import Retriever
from burnish.search.manifest import MANIFEST
from burnish.search.metrics import CONTENT_TYPE
from burnish.search.open_index import open_index
from burnish.search.service import CACHED_DOCUMENTS, MAX_WAITING, Overloaded, SearchFailed, SearchService
from burnish.search.wire import (
    JSON,
    Health,
    HttpProblem,
    ProblemModel,
    Query,
    Retrieved,
    found_response,
    json_response,
    read_query,
)

ROUTES = "there are POST /retrieve, GET /health, GET /metrics and GET /docs"
GRACE_S = 10
KEEP_ALIVE_S = 60  # longer than clients keep a connection: one that is closed under a request costs them a retry
MAX_REQUESTS = 1024  # in flight
RETRY_AFTER_S = 1

REFUSALS = {
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the body is not sent as JSON",
    422: "the body is not what it should be; the reason names the field",
    500: "the retriever failed",
    503: "too many requests; Retry-After says when to try again",
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RetrieverServeOptions:
    """The options of `burnish retriever serve`."""

    index: Path
    host: str = "127.0.0.1"
    port: int = 8000
    topk: int = 3
    mode: str | None = None
    rerank: str | None = None
    device: str = "cpu"
    corpus: Path | None = None
    cached_documents: int = CACHED_DOCUMENTS


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
        return HttpProblem(error.status_code, f"{what}; {ROUTES}", dict(error.headers or {})).response()

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
            response = await answer(request, service, topk)
        except HttpProblem as problem:
            response = problem.response()
        finally:
            service.metrics.in_flight -= 1
        service.metrics.observe(response.status_code, time.perf_counter() - begin)
        return response

    @app.get("/health", response_model=Health)
    async def health() -> Response:
        """What is served."""
        return json_response(
            {
                "status": "ok",
                "retriever": retriever.name,
                "documents": len(retriever),
                "topk": topk,
                "checksum": checksum,
            }
        )

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


async def answer(request: Request, service: SearchService, default_topk: int) -> Response:
    """The answer to one request; HttpProblem where there is none."""
    try:
        if service.metrics.in_flight > MAX_REQUESTS:
            raise Overloaded(f"{MAX_REQUESTS} requests are in flight")
        query, topk = await read_query(request, default_topk)
        return found_response(await service.search(query.queries, topk), query.return_scores)
    except Overloaded as error:
        raise HttpProblem(503, f"{error}; try again later", {"Retry-After": str(RETRY_AFTER_S)}) from None
    except SearchFailed as error:
        raise HttpProblem(500, str(error)) from None


def serve(options: RetrieverServeOptions) -> int:
    """Serve until a signal stops it; the exit code."""
    with listen(options.host, options.port) as listener:
        if not ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback:
            logger.warning("--host %s: any machine that reaches this one may search the index", options.host)
        retriever = open_index(
            options.index, mode=options.mode, rerank=options.rerank, device=options.device, corpus=options.corpus
        )
        # The manifest holds the checksums of all other files.
        checksum = hashlib.sha256((options.index / MANIFEST).read_bytes()).hexdigest()
        app = make_app(retriever, topk=options.topk, cached_documents=options.cached_documents, checksum=checksum)
        return run(app, listener, f"{len(retriever)} documents ({retriever.name})")


def run(app: FastAPI, listener: socket.socket, what: str) -> int:
    """Serve on a listening socket."""
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
    """A socket that listens; ConfigError where it cannot."""
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
    """Where a client on this machine finds it."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


if __name__ == "__main__":
    from burnish.entry.guard import guard
    from burnish.search.serve_command import main

    sys.exit(guard(main, sys.argv[1:]))
