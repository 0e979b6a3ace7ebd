"""The SandboxFusion client against a local server that speaks its API and really runs the programs."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from burnish.config.reward import FUSION, SandboxConfig
from burnish.errors import ConfigError
from burnish.rewards.scores.code import compute_score
from burnish.sandbox import Limits, Outcome, Program, fusion, open_sandbox
from burnish.sandbox.fusion import FusionSandbox


class Server(ThreadingHTTPServer):
    """Misbehaves once for each item of `moods`, then answers as it should."""

    daemon_threads = True

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.requests: list[dict[str, Any]] = []
        self.moods: list[Callable[[Handler], None]] = []
        self.over = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/run_code"

    handle_error = Mock()  # a client that left is what some tests are about


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append({**body, "path": self.path})
        if self.server.moods:
            self.server.moods.pop(0)(self)
        else:
            self.answer(really_run(body, self.server.folder / f"{len(self.server.requests)}.py"))

    def answer(self, content: object, status: int = 200) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    log_message = Mock()


def really_run(request: dict[str, Any], path: Path) -> dict[str, Any]:
    path.write_text(request["code"])
    began = time.monotonic()
    command = [sys.executable, "-I", "-S", str(path)]
    try:
        done = subprocess.run(
            command, input=request["stdin"].encode(), capture_output=True, timeout=request["run_timeout"]
        )
        status, code, out, err = "Finished", done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        status, code, out, err = "TimeLimitExceeded", None, late.stdout or b"", b""
    result = {"status": status, "return_code": code, "execution_time": time.monotonic() - began}
    result |= {"stdout": out.decode(errors="replace"), "stderr": err.decode(errors="replace")}
    return {
        "status": "Success" if code == 0 else "Failed", "message": "", "compile_result": None, "run_result": result,
        "executor_pod_name": None, "files": {},
    }  # fmt: skip


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(fusion, "FIRST_PAUSE", 0.01)
    found = Server(tmp_path)
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.over.set()
    found.shutdown()
    found.server_close()
    thread.join()


def run(url: str, source: str, stdin: str = "", **limits: Any) -> Outcome:
    return asyncio.run(FusionSandbox(url).run(Program(source, stdin), Limits(**limits)))


def says(content: object, status: int = 200) -> Callable[[Handler], None]:
    return lambda handler: handler.answer(content, status)


def drops(handler: Handler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def drops_halfway(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"status": "Success", ')
    handler.close_connection = True


def hangs(handler: Handler) -> None:
    handler.server.over.wait(60)
    handler.close_connection = True


def never_ends(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    while True:
        handler.wfile.write(b"x" * 65536)


def test_a_program_runs(server):
    outcome = run(
        server.url, "import sys; print(input() + '!'); print('é', file=sys.stderr)", "hello", seconds=5, memory_mb=99
    )
    assert (outcome.status, outcome.exit_code, outcome.stdout, outcome.stderr) == ("finished", 0, "hello!\n", "é\n")
    assert outcome.succeeded and outcome.seconds > 0
    (sent,) = server.requests
    assert sent.pop("code").startswith("import sys")
    assert sent == {
        "path": "/run_code", "language": "python", "stdin": "hello", "compile_timeout": 10.0, "run_timeout": 5,
        "memory_limit_MB": 99, "files": {}, "fetch_files": [],
    }  # fmt: skip
    assert run(server.url, "raise SystemExit(3)").exit_code == 3
    late = run(server.url, "print('so far', flush=True)\nwhile True: pass", seconds=5.0)
    assert (late.status, late.exit_code, late.stdout) == ("timeout", None, "so far\n")
    assert run(server.url, "print('x' * 100)", output_bytes=50).status == "output"


def test_the_address_is_taken_as_it_is_given(server):
    for path in ("/run_code", "/run", "/sandbox/run_code", ""):
        assert run(server.url.removesuffix("/run_code") + path, "print(1)").stdout == "1\n"
        assert server.requests[-1]["path"] == (path or "/run_code")
    for url in (None, "", "localhost:8080", "ftp://host/run_code", "http://", "http://host:port/run"):
        with pytest.raises(ConfigError, match=r"reward_model.sandbox.url="):
            FusionSandbox(url)


TROUBLES = {
    **{str(number): says(b"", number) for number in (429, 500, 502, 503, 504)},
    "sandbox error": says({"status": "SandboxError", "message": "no pod", "run_result": None}),
    "run error": says({"status": "Failed", "message": "", "run_result": {"status": "Error", "stderr": "no disk"}}),
    "no result": says({"status": "Success", "run_result": None}),
    "garbage": says(b"<html>"),
    "not an object": says([1, 2]),
    "unknown ending": says({"status": "Success", "run_result": {"status": "Vanished"}}),
    "no return code": says({"status": "Success", "run_result": {"status": "Finished", "stdout": ""}}),
    "deep": says(b"[" * 100_000),
    "dropped": drops,
    "dropped halfway": drops_halfway,
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_trouble_of_the_server_may_pass_and_is_else_a_failure_and_no_score(server, trouble):
    server.moods = [TROUBLES[trouble]] * 2
    assert run(server.url, "print(1)").stdout == "1\n"
    assert len(server.requests) == 3
    server.moods = [TROUBLES[trouble]] * 9
    outcome = run(server.url, "print(1)")
    assert outcome.status == "failed" and outcome.reason.startswith(server.url + ": ")
    assert len(server.requests) == 3 + fusion.TRIES
    assert trouble != "sandbox error" or outcome.reason.endswith("could not run the program: no pod")


def test_the_reason_is_the_servers(server):
    server.moods = [says(b"too many programs", 503)] * 9
    assert run(server.url, "").reason.endswith("status 503 (too many programs)")
    outcome = run("http://127.0.0.1:9/run_code", "print(1)")  # where none is
    assert outcome.status == "failed" and "ConnectError" in outcome.reason


@pytest.mark.parametrize(("number", "hint"), [(404, "/run_code"), (422, "API"), (401, "password"), (302, "302")])
def test_what_will_not_pass_is_asked_once(server, number, hint):
    server.moods = [says(b"", number)] * 9
    outcome = run(server.url, "")
    assert outcome.status == "failed" and hint in outcome.reason and len(server.requests) == 1


def test_slow_and_endless_answers_are_not_waited_for(server, monkeypatch):
    server.moods = [never_ends]
    assert run(server.url, "print(1)", output_bytes=1000).status == "output"
    monkeypatch.setattr(fusion, "ANSWER_SECONDS", 0.2)
    server.moods = [hangs] * 9
    began = time.monotonic()
    outcome = run(server.url, "print(1)", seconds=0.1)
    assert outcome.status == "failed" and "no answer within 0.3 s" in outcome.reason
    assert time.monotonic() - began < 30.0


def test_many_at_once_and_one_event_loop_after_another(server):
    sandbox = FusionSandbox(server.url)

    async def many() -> list[Outcome]:
        return await asyncio.gather(*(sandbox.run(Program(f"print({i})"), Limits()) for i in range(8)))

    for _ in range(2):
        assert [outcome.stdout for outcome in asyncio.run(many())] == [f"{i}\n" for i in range(8)]


def test_health_check_reports_reason(server):
    assert isinstance(open_sandbox(SandboxConfig(backend=FUSION, url=server.url)), FusionSandbox)
    assert asyncio.run(FusionSandbox(server.url).unavailable_reason()) is None
    server.moods = [says(b"", 503)]
    assert asyncio.run(FusionSandbox(server.url).unavailable_reason()) is None
    server.moods = [says(b"", 404)]
    assert "/run_code" in asyncio.run(FusionSandbox(server.url).unavailable_reason())
    server.moods = [
        says({"status": "Success", "run_result": {"status": "Finished", "return_code": 1, "stderr": "no python"}})
    ]
    assert "no python" in asyncio.run(FusionSandbox(server.url).unavailable_reason())
    down = asyncio.run(FusionSandbox("http://user:secret@127.0.0.1:9/run").unavailable_reason())
    assert down.startswith("reward_model.sandbox.url=http://127.0.0.1:9/run: ConnectError") and "secret" not in down
    assert down.endswith("Start a SandboxFusion server there, or correct the address")


PROGRAMS = json.dumps(["assert f(1) == 2", "assert f([1]) is None"])


@pytest.mark.parametrize(
    ("text", "tests", "score"),
    [
        ("```python\ndef f(x): return None if isinstance(x, list) else x + 1\n```", PROGRAMS, 1.0),
        ("```python\ndef f(x): return 2\n```", PROGRAMS, 0.0),
        ("```python\nimport os; os._exit(0)\n```", PROGRAMS, 0.0),
        ("print(int(input()) + 1)", '[{"input": "1", "output": "2"}, {"input": "2", "output": "3\\n"}]', 1.0),
        ("print(2)", '[{"input": "1", "output": "2"}, {"input": "2", "output": "3\\n"}]', 0.0),
    ],
)
def test_code_is_scored_there_as_here(server, text, tests, score):
    result = asyncio.run(compute_score(text, tests, sandbox={"url": server.url}))
    assert result["score"] == score, result
