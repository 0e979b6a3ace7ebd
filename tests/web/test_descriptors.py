"""Servers whose process has few descriptors, under more half-sent requests than it could hold."""

import http.client
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from burnish.search.index import IndexOptions, build_index
from tests.processes import until
from tests.search.small import write_corpus
from tests.serving.conftest import NANO

pytestmark = [pytest.mark.hostile, pytest.mark.long]
DEADLINE_S = 60
HALVES = (b"", b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-", b"GET /", b"\x16\x03\x01")
ENDPOINT = """
import asyncio, sys
from burnish.agents.endpoint.server import Endpoint

async def main():
    endpoint = Endpoint()
    print("serving:", endpoint.url, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await endpoint.close()

asyncio.run(main())
"""


def health(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("name", ["retriever", "serve", "endpoint"])
def test_half_sent_requests_take_neither_the_server_nor_its_log(name, tmp_path):
    if name == "retriever":
        build_index(IndexOptions(write_corpus(tmp_path / "corpus.jsonl"), tmp_path / "index"))
        words = ["-m", "burnish.cli.main", "retriever", "serve", "--index", str(tmp_path / "index"), "--port", "0"]
    elif name == "serve":
        words = ["-m", "burnish.cli.main", "serve", str(NANO), "--device", "cpu", "--port", "0"]
    else:
        words = ["-c", ENDPOINT]
    path, status = ("/v1/models", 401) if name == "endpoint" else ("/health", 200)
    limited = ["bash", "-c", 'ulimit -n 200; exec "$@"', "bash", sys.executable, *words]
    root, pipe = Path(__file__).parents[2], subprocess.PIPE
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(limited, cwd=root, stdin=pipe, stdout=pipe, stderr=log, text=True)
    try:
        port = int(process.stdout.readline().rpartition(":")[2].partition("/")[0])
        assert health(port, path) == status
        files = Path(f"/proc/{process.pid}/fd")
        before = len(os.listdir(files))
        with ExitStack() as clients:
            for i in range(3 * 260):
                client = clients.enter_context(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S))
                with suppress(ConnectionError):  # it was closed for another
                    client.sendall(HALVES[i % len(HALVES)])
                if i % 26 == 25:
                    assert health(port, path) == status
                    assert len(os.listdir(files)) < 200
        until(lambda: len(os.listdir(files)) <= before)
        assert health(port, path) == status
        process.stdin.close()
        if name != "endpoint":
            process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
    text = (tmp_path / "log").read_text()
    assert len(text) < 20_000 and "Traceback" not in text, text
