"""A small retriever in memory, a real server over it in a thread, and servers that answer whatever a test says."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from burnish.search.documents import Document, Hit, Retriever
from tests.processes import until
from tests.search.small import write_encoder

DEADLINE_S = 30
CORPUS = [
    Document("0", '"Faust"\nA play by Goethe.'),
    Document("1", '"Hamlet"\nA play by Shakespeare.'),
    Document("2", '"Moby Dick"\nA novel by Melville about a whale.'),
    Document("3", '"Emma"\nA novel by Austen.'),
]


class Words(Retriever):
    """Documents by how many words of the query they hold. `gate` holds calls up; the word boom makes one fail."""

    name = "words"

    def __init__(self, corpus: Sequence[Document] = CORPUS):
        self.corpus = corpus
        self.calls: list[tuple[list[str], int]] = []
        self.threads: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()

    def __len__(self) -> int:
        return len(self.corpus)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        self.calls.append((list(queries), topk))
        self.threads.add(threading.get_ident())
        assert self.gate.wait(DEADLINE_S)
        if any("boom" in query for query in queries):
            raise RuntimeError("the index is on fire")
        return [self.find(query)[:topk] for query in queries]

    def find(self, query: str) -> list[Hit]:
        asked = set(in_words(query))
        scored = [Hit(doc, float(len(asked & set(in_words(doc.contents))))) for doc in self.corpus]
        return sorted((hit for hit in scored if hit.score), key=lambda hit: -hit.score)


def in_words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@dataclass
class Running:
    url: str
    retriever: Any
    http: httpx.Client  # one for all requests: its certificates take long to load
    server: Any

    def post(self, body: Any = None, **arguments: Any) -> httpx.Response:
        given = arguments if body is None else {"json": body, **arguments}
        return self.http.post("/retrieve", **given)

    def metrics(self) -> dict[str, float]:
        lines = self.http.get("/metrics").text.splitlines()
        values = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name.removeprefix("burnish_retriever_"): float(value) for name, _, value in values}

    def wait_for(self, name: str, value: float) -> None:
        """Until a metric has that value."""
        until(lambda: self.metrics().get(name) == value)


@contextmanager
def running_app(app: Any) -> Iterator[tuple[Any, str]]:
    """Its server, and where that is."""
    from burnish.web.server import HttpServer, listen, url

    with listen("127.0.0.1", 0) as listener:
        server = HttpServer(app, lifespan="on")
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield server, url(listener)
        finally:
            server.should_exit = True
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


@contextmanager
def serving(retriever: Retriever, **options: Any) -> Iterator[Running]:
    from burnish.search.server import make_app

    app = make_app(retriever, **options)
    with running_app(app) as (server, url), httpx.Client(base_url=url, timeout=DEADLINE_S) as http:
        yield Running(url, retriever, http, server)


@pytest.fixture
def words() -> Iterator[Words]:
    retriever = Words()
    yield retriever
    retriever.gate.set()


@pytest.fixture
def server(words: Words) -> Iterator[Running]:
    with serving(words) as running:
        yield running


@pytest.fixture(scope="session")
def calm_server() -> Iterator[Running]:
    """For tests that change nothing."""
    with serving(Words()) as running:
        yield running


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """The folder of a small encoder with random weights. Read-only."""
    return write_encoder(tmp_path_factory.mktemp("models") / "encoder")


Reply = bytes | Callable[[bytes], bytes]


@dataclass
class Canned:
    """A server that sends `replies` one after another, the last one for ever; `bodies` are the requests it had."""

    url: str
    bodies: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def canned(*replies: Reply | None) -> AsyncIterator[Canned]:
    """None stands for no reply at all. Belongs to the event loop of the test."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().splitlines() if b"content-length" in line)
        body = await reader.readexactly(length)
        reply = replies[min(len(seen.bodies), len(replies) - 1)]
        seen.bodies.append(body)
        if reply is None:
            await reader.read()  # until the client leaves
        else:
            writer.write(reply(body) if callable(reply) else reply)
        writer.close()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    seen = Canned(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/retrieve")
    async with listening:
        yield seen


def http(status: str, body: bytes | str, *headers: str) -> bytes:
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(data)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data
