"""`burnish serve`: its flags, what it checks before a model is loaded, and a whole life from start to SIGTERM."""

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from burnish.cli import serve as command
from burnish.cli.main import main
from burnish.errors import install_command
from burnish.rollout.hosted import spec
from burnish.serving import server
from burnish.serving.loading import ModelOptions, own_name, pick_dtype

ROOT = Path(__file__).parents[2]
NANO = str(ROOT / "burnish" / "models" / "nano")


@pytest.fixture
def unloaded(monkeypatch):
    """Loading a model is a failure of the test."""
    monkeypatch.setattr(server, "load", lambda *_: pytest.fail("the model was loaded"))


def test_help_shows_an_example_that_parses(capsys):
    with pytest.raises(SystemExit) as left:
        main(["serve", "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert "native, hf, vllm, sglang [native]" in " ".join(text.split())
    example = text.partition("example:\n")[2].split()
    assert example[:2] == ["burnish", "serve"]
    assert command.parser().parse_args(example[2:]).port == 8001


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "the following arguments are required: FOLDER"),
        (["m", "--port", "x"], "argument --port: invalid int value: 'x'"),
        (["m", "--port", "70000"], "--port 70000: ports go from 1 to 65535"),
        (["m", "--max-num-seqs", "0"], "argument --max-num-seqs: 0 is not 1 or more"),
        (["m", "--max-waiting", "-1"], "argument --max-waiting: -1 is not 0 or more"),
        (["m", "--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
        (["m", "--prot", "1"], "unrecognized arguments: --prot 1"),
    ],
)
def test_wrong_flags(flags, message, capsys, unloaded):
    assert main(["serve", *flags]) == 2
    assert message in capsys.readouterr().err


def test_an_empty_key_is_no_key(capsys, monkeypatch, unloaded):
    """A variable that was never set must not open the server to all."""
    assert main(["serve", NANO, "--api-key", ""]) == 2
    assert "--api-key is empty; give a key, or leave it out" in capsys.readouterr().err
    monkeypatch.setenv("BURNISH_API_KEY", "")
    assert main(["serve", NANO]) == 2
    assert "BURNISH_API_KEY is empty" in capsys.readouterr().err
    assert command.api_key("other") == "other"


def test_mistakes_are_reported_without_torch(tmp_path):
    program = (
        "import sys\n"
        "from burnish.cli.main import main\n"
        "from burnish.rollout.hosted import spec\n"
        "spec.find_spec = lambda name: None\n"
        f"assert main(['serve', {str(tmp_path)!r}]) == 2 and main(['serve', '--port', 'x', 'm']) == 2\n"
        f"assert main(['chat', {str(tmp_path)!r}]) == 2 and main(['serve', {NANO!r}, '--engine', 'vllm']) == 2\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no config.json; the model path must name a Hugging Face model folder" in done.stderr


def test_without_its_packages_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setattr("burnish.entry.arguments.find_spec", lambda name: None)
    assert main(["serve", NANO]) == 2
    assert (
        f"needs the package fastapi and uvicorn; install it with {install_command('serve')}" in capsys.readouterr().err
    )


def test_a_port_in_use_is_reported_before_the_model_loads(capsys, unloaded):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", NANO, "--port", str(port)]) == 2
    error = capsys.readouterr().err.strip()
    assert (
        error
        == f"burnish: error: port {port} on 127.0.0.1 is in use by another program; choose another: --port {port + 1}"
    )


def test_two_servers_that_start_at_once_do_not_share_a_port():
    with server.listen("127.0.0.1", 0) as first, pytest.raises(Exception, match="is in use"):
        server.listen("127.0.0.1", first.getsockname()[1])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "no such host"], "--host no such host: no such address"),
        (["--host", "192.0.2.1"], "--host 192.0.2.1: not an address of this machine"),
        (["--max-model-len", "5000"], "--max-model-len 5000: the model's context is 1024 tokens; lower it"),
        (["--engine", "vllm"], "--engine vllm needs the package vllm, which is not installed"),
        (["--engine", "nope"], "--engine nope: unknown rollout engine; this version has native, hf, vllm, sglang"),
    ],
)
def test_what_is_wrong_is_reported_before_the_model_loads(flags, message, capsys, monkeypatch, unloaded):
    monkeypatch.setattr(spec, "find_spec", lambda name: None)
    assert main(["serve", NANO, "--port", "0", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_device_that_is_missing(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["serve", NANO, "--port", "0", "--device", "cuda"]) == 2
    assert "--device=cuda, but torch sees no GPU" in capsys.readouterr().err


def test_from_start_to_sigterm(capfd, monkeypatch):
    """The whole command: it says where it is, asks for the key, answers, and ends with 0."""
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
    assert (
        main(["serve", NANO, "--host", "0.0.0.0", "--port", "0", "--served-model-name", "sums", "--dtype", "fp32"]) == 0
    )
    assert (found["without"].status_code, found["with"].status_code) == (401, 200)
    out, err = capfd.readouterr()
    first, second = out.splitlines()
    assert first.startswith("serving sums on cpu in float32, context 1024 tokens: http://127.0.0.1:")
    assert second.startswith("try: curl http://127.0.0.1:") and "Authorization: Bearer KEY" in second
    assert "POST /v1/completions 200 5+2 tokens" in err and "POST /v1/completions 401" in err
    assert "without --api-key" not in err


class Engine:
    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1


def test_an_open_address_without_a_key_is_warned_about(caplog, monkeypatch):
    monkeypatch.setattr(server, "load", lambda *_: SimpleNamespace(engine=Engine()))
    monkeypatch.setattr(server, "run", lambda *_: _seven())
    for host, warned in (("0.0.0.0", True), ("127.0.0.1", False)):
        caplog.clear()
        assert server.serve(server.ServeOptions(ModelOptions(NANO), host=host, port=0)) == 7
        assert ("any machine that reaches port" in caplog.text) is warned


async def _seven():
    return 7


def test_the_engine_is_closed_at_the_end_whatever_it_is(monkeypatch):
    engine = Engine()
    options = server.ServeOptions(ModelOptions(NANO), port=0)
    monkeypatch.setattr(server, "load", lambda *_: SimpleNamespace(engine=engine))
    monkeypatch.setattr(server, "run", lambda *_: _seven())
    assert server.serve(options) == 7 and engine.closed == 1
    monkeypatch.setattr(server, "run", lambda *_: _broken())
    with pytest.raises(MemoryError):
        server.serve(options)
    assert engine.closed == 2


async def _broken():
    raise MemoryError


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
