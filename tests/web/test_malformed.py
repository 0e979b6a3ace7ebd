"""Malformed requests over raw sockets: each has its outcome, and honest clients are answered at the same time."""

import asyncio
import errno
import random

import pytest

from tests.web.conftest import SERVERS, good_request, read
from tests.web.malformed import CLOSED, INVALID, TABLE

pytestmark = pytest.mark.hostile
#: A third of the table at each server; the rest is long.
CASES = [
    pytest.param(server, name, marks=[pytest.mark.long] if (i + j) % len(SERVERS) else [], id=f"{server}-{name}")
    for i, server in enumerate(SERVERS)
    for j, name in enumerate(TABLE)
]


@pytest.mark.parametrize(("place", "name"), CASES, indirect=["place"])
def test_a_malformed_request_gets_a_reason_or_is_closed(place, name, caplog):
    malformed = TABLE[name]
    client = place.send(malformed.raw, malformed.ends)
    assert place.honest() == 200
    status, reason = read(client, name.removeprefix("method: "))
    expected = place.invalid if malformed.status == INVALID else malformed.status
    assert (status, malformed.reason in reason) == (expected, True), reason
    assert reason or status == CLOSED or name == "method: HEAD"
    assert "Traceback" not in reason + caplog.text and len(reason) < 1000


@pytest.mark.parametrize("place", SERVERS[:1], indirect=True)
def test_a_client_that_leaves_while_what_follows_its_request_is_refused(place, caplog, monkeypatch):
    refused = []

    def left(self):
        refused.append(self)
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr(asyncio.selector_events._SelectorSocketTransport, "write_eof", left)
    damaged = good_request(place).replace(b"Connection: close\r\n", b"") + b"\0\r\n\r\n"
    assert read(place.send(damaged))[0] == 200
    assert place.honest() == 200
    assert refused and "OSError" not in caplog.text


@pytest.mark.long
@pytest.mark.parametrize("place", SERVERS, indirect=True)
def test_a_good_request_with_damage_is_answered_or_closed(place, caplog):
    good, numbers = good_request(place), random.Random(0)
    for number in range(500):
        raw = bytearray(good)
        for _ in range(numbers.randint(1, 8)):
            at, what = numbers.randrange(len(raw)), numbers.randrange(3)
            raw[at : at + (what > 0)] = bytes([numbers.randrange(256)]) * (what < 2)  # inserted, replaced, removed
        status, _ = read(place.send(bytes(raw), ends=True))
        assert status in (0, 200, 400, 401, 404, 405, 415, 422, 431, 501, 505), raw
        assert number % 50 or place.honest() == 200
    assert "Traceback" not in caplog.text and "Exception" not in caplog.text
