"""`burnish retriever serve`: its flags, what it checks before an index is opened, and a whole life until a signal."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from burnish.cli.main import main
from burnish.errors import install_command
from burnish.search import serve_command as command
from burnish.search import server

ROOT = Path(__file__).parents[2]
SERVE = ["retriever", "serve"]


@pytest.fixture
def unopened(monkeypatch):
    """Opening an index is a failure of the test."""
    monkeypatch.setattr(server, "open_index", lambda *_, **__: pytest.fail("the index was opened"))


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("retriever")
    lines = [
        {"id": "0", "contents": '"Faust"\nA play by Goethe.'},
        {"id": "1", "contents": '"Moby Dick"\nA novel about a whale.'},
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert (
        main(["retriever", "index", "--corpus", str(folder / "corpus.jsonl"), "--output", str(folder / "index")]) == 0
    )
    return folder / "index"


def test_help_shows_an_example_that_parses(capsys):
    with pytest.raises(SystemExit) as left:
        main([*SERVE, "--help"])
    assert left.value.code == 0
    example = capsys.readouterr().out.partition("example:\n")[2].split()
    assert example[:3] == ["burnish", *SERVE]
    assert command.parser().parse_args(example[3:]).port == 8001


def test_the_defaults_are_those_of_the_server():
    flags, options = command.parser().parse_args(["--index", "x"]), server.RetrieverServeOptions(Path("x"))
    assert flags.cache == options.cached_documents
    for name in ("host", "port", "topk", "mode", "rerank", "device", "corpus"):
        assert getattr(flags, name) == getattr(options, name)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "the following arguments are required: --index"),
        (["--index", "x", "--port", "70000"], "--port 70000: ports go from 1 to 65535"),
        (["--index", "x", "--topk", "0"], "argument --topk: 0 is not 1 or more"),
        (["--index", "x", "--topk", "101"], "--topk 101: at most 100"),
        (["--index", "x", "--cache", "-1"], "argument --cache: -1 is not 0 or more"),
        (["--index", "x", "--prot", "1"], "unrecognized arguments: --prot 1"),
        (["--index", "x", "--port", "0", "--host", "no such host"], "cannot listen on --host no such host --port 0"),
    ],
)
def test_wrong_flags(flags, message, capsys, unopened):
    assert main([*SERVE, *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_port_in_use_is_reported_before_the_index_is_opened(capsys, unopened):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([*SERVE, "--index", "x", "--port", str(taken.getsockname()[1])]) == 2
    assert "Address already in use" in capsys.readouterr().err


def test_without_its_packages_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setattr("burnish.entry.arguments.find_spec", lambda name: None)
    assert main([*SERVE, "--index", "x"]) == 2
    assert (
        f"needs the package fastapi and uvicorn; install it with {install_command('search')}" in capsys.readouterr().err
    )


def test_no_index(tmp_path, capsys):
    assert main([*SERVE, "--index", str(tmp_path / "none"), "--port", "0"]) == 2
    assert "none: no such index folder" in capsys.readouterr().err


def test_all_flags_reach_the_server(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(server, "serve", lambda options: seen.append(options) or 0)
    flags = "--host ::1 --port 1 --topk 2 --mode bm25 --rerank R --device cuda --corpus C --cache 3".split()
    assert main([*SERVE, "--index", "I", *flags]) == 0
    assert seen == [server.RetrieverServeOptions(Path("I"), "::1", 1, 2, "bm25", "R", "cuda", Path("C"), 3)]


@pytest.mark.parametrize(
    ("program", "number", "code"),
    [
        (["burnish.search.server"], signal.SIGTERM, 0),
        (["burnish.cli.main", *SERVE], signal.SIGINT, 130),
    ],
)
def test_from_start_to_a_signal(index, program, number, code):
    words = [sys.executable, "-m", *program, "--index", str(index), "--port", "0", "--host", "0.0.0.0"]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert line.startswith("serving 2 documents (bm25): http://127.0.0.1:") and line.endswith("/retrieve"), line
        url = line.rpartition(" ")[2]
        found = httpx.post(url, json={"queries": ["whale", "goethe"]}, timeout=60).json()["result"]
        assert [[document["id"] for document in documents] for documents in found] == [["1"], ["0"]]
        assert len(httpx.get(url.replace("/retrieve", "/health"), timeout=60).json()["checksum"]) == 64
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out) == (code, "")
    assert "--host 0.0.0.0: any machine that reaches this one may search the index" in err and "Traceback" not in err
