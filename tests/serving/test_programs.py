"""`burnish serve --engine vllm` and `sglang`, from its start to a SIGTERM that leaves nothing behind."""

import signal
import threading
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from burnish.cli.main import main
from burnish.rollout.hosted.keeper import members
from burnish.serving import server
from tests.serving.conftest import NANO

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PROGRAMS = [
    pytest.param(name, marks=[mark, pytest.mark.skipif(find_spec(name) is None, reason=f"needs {label}")])
    for name, label, mark in (("vllm", "vLLM", pytest.mark.vllm), ("sglang", "SGLang", pytest.mark.sglang))
]
DEADLINE_S = 120


def ask(url, **fields):
    body = {"model": "nano", "messages": [{"role": "user", "content": "347+586=?"}], "seed": 1, "logprobs": True}
    return httpx.post(f"{url}/v1/chat/completions", json=body | fields, timeout=DEADLINE_S)


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_answers_and_leaves_nothing_behind(monkeypatch, capfd, name):
    found, hello = {}, server.print_address

    def talk(url, engine):
        try:
            found["health"] = httpx.get(f"{url}/health", timeout=DEADLINE_S)
            found["answers"] = [ask(url, temperature=0.7, max_tokens=64) for _ in range(2)]
            found["cold"] = ask(url, temperature=0.005)
            program = engine.engine
            found["group"] = program.process.pid
            found["processes"] = members(found["group"])
            found["files"] = [program.weights.path, Path(program._place.name), program.process.log_file]
            found["were there"] = [file.exists() for file in found["files"]]
        finally:
            signal.raise_signal(signal.SIGTERM)

    def print_address(model, options, listener):
        hello(model, options, listener)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        threading.Thread(target=talk, args=(url, model.engine)).start()

    monkeypatch.setattr(server, "print_address", print_address)
    assert main(["serve", str(NANO), "--engine", name, "--port", "0", "--device", "cpu", "--max-num-seqs", "4"]) == 0
    assert capfd.readouterr().out.startswith("serving nano on cpu in float32, context 1024 tokens: http://127.0.0.1:")
    assert found["health"].json() == {"status": "ok", "answers_in_flight": 0}
    first, second = (answer.json() for answer in found["answers"])
    (choice,) = first["choices"]
    assert "answer: " in choice["message"]["content"] and choice["message"] == second["choices"][0]["message"]
    assert len(choice["logprobs"]["content"]) == first["usage"]["completion_tokens"] > 5
    if name == "vllm":
        assert found["cold"].status_code == 400 and "vLLM takes 0" in found["cold"].json()["error"]["message"]
    assert len(found["processes"]) > 1 and found["were there"] == [True] * 3
    assert members(found["group"]) == []
    assert [file for file in found["files"] if file.exists()] == []
