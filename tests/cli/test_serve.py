"""`burnish serve`: its flags, what it checks before a model is loaded, and a whole life from start to SIGTERM."""

import signal
import socket
import threading
from types import SimpleNamespace

import httpx
import pytest

from burnish.cli import quickstart
from burnish.cli.main import main
from burnish.entry.arguments import read_key
from burnish.serving import server
from burnish.serving.loading import ModelOptions, own_name, pick_dtype

NANO = str(quickstart.NANO)


def test_a_port_in_use_and_an_empty_key_are_reported_before_the_model_loads(capsys, monkeypatch):
    monkeypatch.setattr(server, "load", lambda *_: pytest.fail("the model was loaded"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", NANO, "--port", str(port)]) == 2
    said = f"port {port} on 127.0.0.1 is in use by another program; choose another: --port {port + 1}"
    assert capsys.readouterr().err == f"burnish: error: {said}\n"
    monkeypatch.setenv("BURNISH_API_KEY", "")
    assert main(["serve", NANO]) == 2
    assert "BURNISH_API_KEY is empty" in capsys.readouterr().err
    assert read_key("other", "BURNISH_API_KEY") == "other"


def test_a_device_that_is_missing(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["serve", NANO, "--port", "0", "--device", "cuda"]) == 2
    assert "--device=cuda, but torch sees no GPU" in capsys.readouterr().err


def test_from_start_to_sigterm(capfd, monkeypatch):
    monkeypatch.setenv("BURNISH_API_KEY", "sesame")
    found = {}

    def print_address(model, options, listener):
        hello(model, options, listener)

        def talk():
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"
            body = {"model": "sums", "prompt": "1+1=?", "max_tokens": 2}
            found["without"] = httpx.post(url, json=body, timeout=60)
            found["with"] = httpx.post(url, json=body, headers={"Authorization": "Bearer sesame"}, timeout=60)
            signal.raise_signal(signal.SIGTERM)

        threading.Thread(target=talk).start()

    hello = server.print_address
    monkeypatch.setattr(server, "print_address", print_address)
    address = ["--host", "0.0.0.0", "--port", "0"]
    assert main(["serve", NANO, *address, "--served-model-name", "sums", "--dtype", "fp32"]) == 0
    assert (found["without"].status_code, found["with"].status_code) == (401, 200)
    out, err = capfd.readouterr()
    first, second = out.splitlines()
    assert first.startswith("serving sums on cpu in float32, context 1024 tokens: http://127.0.0.1:")
    assert second.startswith("try: curl http://127.0.0.1:") and "Authorization: Bearer KEY" in second
    assert "POST /v1/completions 200 5+2 tokens" in err and "POST /v1/completions 401" in err
    assert "without --api-key" not in err


def test_the_engine_is_closed_at_the_end_and_an_open_address_without_a_key_is_warned_about(caplog, monkeypatch):
    async def seven(*_):
        return 7

    async def broken(*_):
        raise MemoryError

    closed = []
    engine = SimpleNamespace(close=lambda: closed.append(1))
    monkeypatch.setattr(server, "load", lambda *_: SimpleNamespace(engine=engine))
    monkeypatch.setattr(server, "run", seven)
    for host, warned in (("0.0.0.0", True), ("127.0.0.1", False)):
        caplog.clear()
        assert server.serve(server.ServeOptions(ModelOptions(NANO), host=host, port=0)) == 7
        assert ("any machine that reaches port" in caplog.text) is warned
    monkeypatch.setattr(server, "run", broken)
    with pytest.raises(MemoryError):
        server.serve(server.ServeOptions(ModelOptions(NANO), port=0))
    assert len(closed) == 3


def test_names_and_types(tmp_path):
    import torch

    (tmp_path / "run" / "global_step_30" / "actor").mkdir(parents=True)
    assert own_name(str(tmp_path / "run")) == "run"
    assert own_name(str(tmp_path / "run" / "global_step_30" / "actor")) == "global_step_30"
    assert own_name("Qwen/Qwen2.5-0.5B-Instruct") == "Qwen/Qwen2.5-0.5B-Instruct"
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    assert pick_dtype(ModelOptions(str(half)), cpu) == "float32"
    assert pick_dtype(ModelOptions(str(half)), gpu) == "bfloat16"
    assert pick_dtype(ModelOptions(str(half), dtype="float16"), gpu) == "float16"
    (half / "config.json").write_text('{"dtype": "float8_e4m3fn"}')
    with pytest.raises(Exception, match="its dtype is float8_e4m3fn, .* --dtype bfloat16"):
        pick_dtype(ModelOptions(str(half)), gpu)
