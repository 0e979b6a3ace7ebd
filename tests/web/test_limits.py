"""What a client may hold of a server, and for how long; and that the log stays short."""

import asyncio
import logging
import re
import resource
import select
from contextlib import ExitStack, contextmanager

import pytest
from fastapi.responses import PlainTextResponse, Response

from burnish.web import connections as connections_module
from burnish.web import server as server_module
from burnish.web.connections import RESERVE, Connections
from burnish.web.requests import Limits, bare_app
from burnish.web.server import Seldom
from tests.processes import until
from tests.search.conftest import running_app
from tests.web.conftest import DEADLINE_S, Place, good_request, read, running

pytestmark = pytest.mark.hostile
HALF = b"POST PATH HTTP/1.1\r\nHost: x\r\nContent-"
BODY = b"POST PATH HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer KEY\r\nContent-Type: application/json\r\n"
SLOW_BODY = BODY + b"Content-Length: 500\r\n\r\n{"


@contextmanager
def plain(limits):
    """A server whose GET /gate waits for an event and whose GET /large is more than any socket holds."""

    def shape(problem):
        return PlainTextResponse(str(problem), problem.status, problem.headers)

    app, gate = bare_app(shape, "there are no others", limits), []

    @app.get("/gate")
    async def wait() -> Response:
        gate.append((asyncio.get_running_loop(), opened := asyncio.Event()))
        await opened.wait()
        return Response("done")

    @app.get("/large")
    async def large() -> Response:
        return Response(bytes(64 * 1024 * 1024))

    with running_app(app) as (server, url):
        try:
            yield Place("plain", server, int(url.rpartition(":")[2]), "/gate", {}, 400), gate
        finally:
            for loop, opened in gate:
                loop.call_soon_threadsafe(opened.set)


def is_closed(client):
    """Once the server has closed it; what came before is dropped."""
    client.settimeout(DEADLINE_S)
    try:
        while client.recv(1 << 20):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("name", ["retriever", pytest.param("serve", marks=pytest.mark.long), "endpoint"])
def test_headers_and_bodies_that_do_not_arrive_in_time(name):
    with running(name, Limits(header_s=3, body_s=3)) as place:
        halves = [place.send(raw) for raw in (b"", b"P", HALF, HALF + b"Length: 5\r\nX: " + b"a" * 1000)]
        body = place.send(SLOW_BODY)
        chunks = place.send(BODY + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab")
        assert place.honest() == 200
        assert all(is_closed(half) for half in halves)
        for slow in (body, chunks):
            status, reason = read(slow)
            assert (status, reason) == (408, "the body did not arrive within 3 s")
        assert place.honest() == 200
        for half in halves:
            half.close()
        until(lambda: not place.server.connections.open)


def test_sending_on_gives_no_more_time(monkeypatch):
    monkeypatch.setattr(server_module, "LOOK_S", 0.05)
    answered = b"GET /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    with plain(Limits(header_s=1, keep_alive_s=1000)) as (place, _):
        clients = {place.send(raw): byte for raw, byte in ((HALF, b"x"), (b"", b"\r\n"), (answered, b"x"))}
        for client, byte in clients.items():
            with client:
                client.settimeout(0.05)
                for _ in range(1000):
                    try:
                        client.sendall(byte)
                        if not client.recv(1000):
                            break
                    except TimeoutError:
                        continue
                    except ConnectionError:
                        break
                else:
                    pytest.fail("it was not closed")


def test_an_answer_that_is_not_read_is_dropped(monkeypatch):
    monkeypatch.setattr(server_module, "LOOK_S", 0.05)
    with (
        plain(Limits(read_s=1)) as (place, _),
        place.send(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"),
        place.send(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"),
    ):
        until(lambda: len(place.server.connections.open) == 2)
        until(lambda: len(place.server.connections.open) == 1)
        (kept,) = place.server.connections.open
        assert kept.cycle.scope["path"] == "/x", "its answer was small enough"


@pytest.mark.parametrize("name", ["retriever", pytest.param("serve", marks=pytest.mark.long), "endpoint"])
def test_too_many_connections_cost_those_that_wait_longest_for_their_client(name, caplog):
    with running(name, Limits(connections=8)) as place, ExitStack() as stack:
        for _ in range(4):
            clients = [stack.enter_context(place.send((HALF, SLOW_BODY, b"")[i % 3])) for i in range(10)]
            assert place.honest() == 200
            assert all(is_closed(client) for client in clients[:2])
            until(lambda: len(place.server.connections.open) <= 8)
        stack.close()
        until(lambda: not place.server.connections.open)
        assert place.honest() == 200
    lines = [record.getMessage() for record in caplog.records if "waits longest" in record.getMessage()]
    assert len(lines) <= 5, "one in ten seconds"
    assert "Traceback" not in caplog.text


def test_large_bodies_that_arrive_together_are_bounded():
    with running("retriever", Limits(receiving_bytes=1000)) as place, ExitStack() as stack:
        large = BODY + b"Content-Length: 2000\r\n\r\n" + b"x" * 800
        first = stack.enter_context(place.send(large))
        until(lambda: place.server.config.app.state.receiving == 800)
        status, reason = read(place.send(large))
        assert (status, reason) == (503, "too many large bodies are arriving; try again later")
        assert place.honest() == 200
        first.close()
        until(lambda: not place.server.config.app.state.receiving)


def test_a_request_that_is_answered_keeps_its_connection():
    with plain(Limits(connections=3)) as (place, gate), ExitStack() as stack:
        busy = [place.send(b"GET PATH HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(3)]
        until(lambda: len(gate) == 3)
        with place.send(HALF) as refused:
            text = b""
            while part := refused.recv(1000):
                text += part
            assert text.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1\r\n" in text.lower()
            assert b"connection: close" in text and text.endswith(b"too many connections are open; try again later")
        for loop, opened in gate:
            loop.call_soon_threadsafe(opened.set)
        for client in busy:
            stack.enter_context(client)
            until(lambda client=client: select.select([client], [], [], 0)[0])
            assert client.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_requests_in_one_packet_are_answered_in_turn_until_one_is_malformed(places):
    place = places("retriever")
    good = good_request(place).replace(b"Connection: close\r\n", b"")
    with place.send(good * 2 + b"nonsense\r\n\r\n") as client:
        text = b""
        while part := client.recv(10_000):
            text += part
    assert re.findall(rb"HTTP/1.1 (\d+) ", text) == [b"200", b"200", b"400"]


def test_bodies_end_where_the_request_says(places):
    """What follows a body is another request, and an upgrade that is not known is none."""
    place = places("retriever")
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    assert read(place.send(good_request(place).replace(b"Connection: close\r\n", upgrade)))[0] == 200
    expect = good_request(place).replace(b"Host: x\r\n", b"Host: x\r\nExpect: 100-continue\r\n")
    assert read(place.send(expect))[0] == 200


def test_connections_stay_below_the_descriptors_of_the_process(monkeypatch):
    limits, changed = [(200, 200)], []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: changed.append(pair))
    monkeypatch.setattr(connections_module.os, "listdir", lambda _: ["0"] * 10)

    def most(wanted):
        return Connections(Limits(connections=wanted), lambda problem: Response()).most

    assert (most(4096), most(50), changed) == (190 - RESERVE, 50, [])
    limits.append((200, 1000))
    assert most(50) == 50 and not changed
    assert most(300) == 190 - RESERVE or changed == [(310 + RESERVE, 1000)]
    limits.append((resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert most(4096) == 4096
    monkeypatch.setattr(resource, "setrlimit", lambda *_: int("macOS"))  # ValueError, as there
    limits.append((200, resource.RLIM_INFINITY))
    assert most(4096) == 190 - RESERVE
    limits.append((20, 20))
    assert most(4096) == 1


def test_lines_that_repeat_are_left_out_and_counted(monkeypatch, caplog):
    now = [0.0]
    monkeypatch.setattr(server_module.time, "monotonic", lambda: now[0])
    logger = logging.getLogger("burnish.web.test")
    logger.addFilter(only := Seldom("socket.accept() "))
    for _ in range(1000):
        logger.error("socket.accept() out of system resource\nsocket: x")
        now[0] += 0.125
    logger.error("another")
    logger.error("another")
    logger.removeFilter(only)
    assert len(caplog.records) == 15 and "(79 more such lines were left out)" in caplog.records[-3].getMessage()


def test_a_flood_of_malformed_requests_is_one_line(places, caplog):
    place = places("retriever")
    for _ in range(50):
        assert read(place.send(b"nonsense\r\n\r\n"))[0] == 400
        assert read(place.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"))[0] == 404
    assert len([record for record in caplog.records if record.name == "uvicorn.error"]) <= 4
