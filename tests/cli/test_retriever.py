"""`burnish retriever`: an index built and asked from the command line, and a server's whole life until a signal."""

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from burnish.cli import serve
from burnish.cli.main import main
from burnish.search import serve_command, server
from burnish.search.index import IndexOptions, build_index
from tests.search.small import PASSAGES, write_corpus


def test_an_index_is_built_and_asked_and_passages_cannot_drive_the_terminal(tmp_path, capsys):
    corpus, index = str(write_corpus(tmp_path / "corpus.jsonl")), str(tmp_path / "index")
    assert main(["retriever", "index", corpus, "--out", index]) == 0
    told = capsys.readouterr()
    assert re.search(rf"{index}: 7 passages, bm25, 0 MB, \d+ s", told.out) and "burnish retriever query" in told.out
    assert "packing: 7/7 lines" in told.err and "counting words: 7/7 passages" in told.err

    query = ["retriever", "query", index, "tragedies of Shakespeare", "xyzzy"]
    assert main([*query, "--topk", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("tragedies of Shakespeare (bm25, 7 passages)\n  1. ") and "[a] Hamlet" in out
    assert "[b] Macbeth" not in out and "xyzzy (bm25, 7 passages)\n     nothing found" in out

    assert main([*query, "--json", "--corpus", corpus]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["query"] == "tragedies of Shakespeare" and second == {"query": "xyzzy", "hits": []}
    assert [hit["document"] for hit in first["hits"]] == [{"id": i, "contents": c} for i, c in PASSAGES[:2]]
    assert first["hits"][0]["score"] >= first["hits"][1]["score"] > 0
    corpus = write_corpus(tmp_path / "hostile.jsonl", [("\x1b[2J", '"Title\x1b]0;x\x07"\nword \x1b[31mred')])
    index = str(tmp_path / "hostile")
    assert main(["retriever", "index", "--corpus", str(corpus), "--output", index]) == 0
    assert main(["retriever", "query", "--index", index, "word"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\\x1b[31mred" in out


SERVE = ["retriever", "serve"]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("retriever")
    build_index(IndexOptions(write_corpus(folder / "corpus.jsonl"), folder / "index"))
    return folder / "index"


@pytest.mark.parametrize(
    ("flags", "given", "how"),
    [
        ("", ("127.0.0.1", 8000, 3, server.CACHED_DOCUMENTS, None), (None, None, "cpu", None)),
        (
            "--api-key K --host ::1 --port 1 --topk 2 --mode bm25 --rerank R --device cuda --corpus C --cache 3",
            ("::1", 1, 2, 3, "K"),
            ("bm25", "R", "cuda", Path("C")),
        ),
        ("api_key=K port=1", ("127.0.0.1", 1, 3, server.CACHED_DOCUMENTS, "K"), (None, None, "cpu", None)),
    ],
)
def test_all_flags_reach_the_server(monkeypatch, flags, given, how):
    seen = []
    monkeypatch.setattr(server, "serve", lambda *given, **how: seen.append((given, how)) or 0)
    for index in (["--index", "I"], ["I"]):
        assert main([*SERVE, *index, *flags.split()]) == 0
    call = ((Path("I"), *given), dict(zip(("mode", "rerank", "device", "corpus"), how, strict=True)))
    assert seen == [call, call]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("retriever serve", "one of the arguments INDEX is required"),
        ("retriever index --out x", "one of the arguments CORPUS is required"),
        ("retriever index a.jsonl --corpus b.jsonl --out x", "not allowed with argument"),
        ("retriever query wiki-index", "retriever query: the query is missing"),
    ],
)
def test_a_missing_or_double_input_is_named(words, said, capsys):
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err


def test_servers_have_ports_of_their_own():
    assert serve.parser().parse_args(["m"]).port != serve_command.parser().parse_args(["i"]).port


def test_a_port_in_use_is_reported_before_the_index_is_opened(capsys, monkeypatch, tmp_path):
    assert main([*SERVE, "--index", str(tmp_path / "none"), "--port", "0"]) == 2
    assert "none: no such index folder" in capsys.readouterr().err
    monkeypatch.setattr(server, "open_index", lambda *_, **__: pytest.fail("the index was opened"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([*SERVE, "--index", "x", "--port", str(taken.getsockname()[1])]) == 2
    assert "is in use by another program" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "number", "code"),
    [(["burnish.search.server"], signal.SIGTERM, 0), (["burnish.cli.main", *SERVE], signal.SIGINT, 130)],
)
def test_from_start_to_a_signal(index, program, number, code):
    words = [sys.executable, "-m", *program, "--index", str(index), "--port", "0", "--host", "0.0.0.0"]
    root, pipe = Path(__file__).parents[2], subprocess.PIPE
    process = subprocess.Popen(words, cwd=root, stdout=pipe, stderr=pipe, text=True)
    try:
        line = process.stdout.readline().strip()
        assert line.startswith("serving 7 documents (bm25): http://127.0.0.1:") and line.endswith("/retrieve"), line
        url = line.rpartition(" ")[2]
        found = httpx.post(url, json={"queries": ["whale", "devil"]}, timeout=60).json()["result"]
        assert [[document["id"] for document in documents] for documents in found] == [["d"], ["c"]]
        assert len(httpx.get(url.replace("/retrieve", "/health"), timeout=60).json()["checksum"]) == 64
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out) == (code, "")
    assert (
        "--host 0.0.0.0 without --api-key: any machine that reaches this one may search the index" in err
        and "Traceback" not in err
    )
