"""The three servers, each in a thread and with a key; and an honest client."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from burnish.agents.endpoint import server as endpoint_module
from burnish.agents.endpoint.requests import read_request
from burnish.agents.endpoint.server import Endpoint
from burnish.rollout.base import Sampling
from burnish.serving.loading import ModelOptions, load
from burnish.web.requests import Limits
from burnish.web.server import HttpServer
from tests.processes import until
from tests.search.conftest import Words
from tests.search.conftest import serving as serving_retriever
from tests.serving.conftest import NANO
from tests.serving.conftest import serving as serving_model

KEY = "sesame"
DEADLINE_S = 60
CHAT = {"model": "nano", "messages": [{"role": "user", "content": "1+1=?"}], "max_tokens": 1}
SERVERS = ("serve", "retriever", "endpoint")


@dataclass
class Place:
    """A server that runs."""

    name: str
    server: HttpServer
    port: int
    path: str  # its main address
    good: dict[str, Any]  # a body that it takes
    invalid: int  # its status for others

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)

    def send(self, raw: bytes, ends: bool = False) -> socket.socket:
        raw = raw.replace(b"PATH", self.path.encode()).replace(b"KEY", KEY.encode())
        raw = raw.replace(b"GOOD", b'{"a"') if b"Content-Length: 4\r\n" in raw else raw
        client = self.connect()
        try:
            client.sendall(raw)
            if ends:
                client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it was closed in the meantime, which is an outcome too
        return client

    def honest(self) -> int:
        """The status of a good request."""
        return read(self.send(good_request(self)))[0]


def good_request(place: Place) -> bytes:
    data = json.dumps(place.good).encode()
    head = "POST PATH HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer KEY\r\nContent-Type: application/json\r\n"
    return f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def read(client: socket.socket, method: str | None = None) -> tuple[int, str]:
    """Status and reason of the answer; 0 if the connection ends without one. Closes the connection."""
    with client:
        answer = http.client.HTTPResponse(client, method=method)
        try:
            answer.begin()
            text = answer.read().decode()
        except (http.client.HTTPException, ConnectionError):
            return 0, ""
    if answer.status == 200 or not text:
        return answer.status, text
    problem = json.loads(text)
    return answer.status, problem["error"]["message"] if "error" in problem else problem["detail"]


@contextmanager
def endpoint(limits: Limits) -> Iterator[tuple[Endpoint, int]]:
    """The agents' endpoint, with one trajectory whose replies are of no interest."""
    run = {**Sampling().__dict__, "stop": (), "stop_token_ids": ()}

    async def answer(body: Any) -> Any:
        return SimpleNamespace(request=read_request(body, run, 512), whole=dict)

    ready, found = threading.Event(), []

    async def main() -> None:
        leave = asyncio.Event()
        made = Endpoint()
        made.sessions[KEY] = SimpleNamespace(answer=answer)
        found.append((made, leave, asyncio.get_running_loop()))
        ready.set()
        await leave.wait()
        await made.close()

    before, endpoint_module.LIMITS = endpoint_module.LIMITS, limits
    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        assert ready.wait(DEADLINE_S)
        made, leave, loop = found[0]
        yield made, int(made.url.rpartition(":")[2].partition("/")[0])
    finally:
        endpoint_module.LIMITS = before
        loop.call_soon_threadsafe(leave.set)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


@contextmanager
def running(name: str, limits: Limits, **options: Any) -> Iterator[Place]:
    chat = "/v1/chat/completions"
    if name == "retriever":
        limits = replace(limits, body_bytes=8 * 1024 * 1024)
        with serving_retriever(Words(), api_key=KEY, limits=limits, **options) as retriever:
            port = int(retriever.url.rpartition(":")[2])
            yield Place(name, retriever.server, port, "/retrieve", {"queries": ["whale"]}, 422)
    elif name == "serve":
        model = load(ModelOptions(str(NANO), device="cpu"))
        with serving_model(model, api_key=KEY, limits=limits, **options) as served:
            yield Place(name, served.server, int(served.url.rpartition(":")[2]), chat, CHAT, 400)
    else:
        with endpoint(limits) as (made, port):
            yield Place(name, made, port, chat, CHAT, 400)


@pytest.fixture(scope="module")
def places() -> Iterator[Callable[[str], Place]]:
    """Servers with their own limits, by name. At the end nothing may be left of what was sent to them."""
    with ExitStack() as stack:
        made: dict[str, Place] = {}

        def place(name: str) -> Place:
            if name not in made:
                made[name] = stack.enter_context(running(name, Limits()))
            return made[name]

        yield place
        for each in made.values():
            until(lambda each=each: not each.server.connections.open)
            assert until(lambda each=each: not each.server.server_state.tasks) and not each.server.connections.idle


@pytest.fixture
def place(places: Callable[[str], Place], request: pytest.FixtureRequest) -> Place:
    return places(request.param)
