"""`burnish retriever`: the group, its help, and an index built and asked from the command line."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.cli import retriever_index, retriever_query
from burnish.cli.main import RETRIEVER, main
from tests.search.small import PASSAGES, write_corpus

ROOT = Path(__file__).parents[2]


@pytest.fixture
def corpus(tmp_path):
    return str(write_corpus(tmp_path / "corpus.jsonl"))


def test_the_group_lists_its_commands_and_every_example_parses(capsys):
    assert main(["retriever"]) == main(["retriever", "--help"]) == 0
    text = capsys.readouterr().out
    for name in RETRIEVER.parts:
        assert f"  {name} " in text and f"burnish retriever {name} --" in text
    examples = [shlex.split(line) for line in RETRIEVER.examples]
    assert retriever_index.parser().parse_args(examples[0][3:]).output == "wiki-index"
    assert retriever_query.parser().parse_args(examples[1][3:]).query == ["who wrote hamlet"]


@pytest.mark.parametrize("command", [retriever_index, retriever_query])
def test_help_shows_an_example_that_parses(command, capsys):
    name = command.__name__.rpartition("_")[2]
    with pytest.raises(SystemExit) as left:
        main(["retriever", name, "--help"])
    assert left.value.code == 0
    example = shlex.split(capsys.readouterr().out.partition("example:\n")[2])
    assert example[:3] == ["burnish", "retriever", name]
    command.parser().parse_args(example[3:])


def test_help_and_mistakes_come_without_heavy_packages():
    program = (
        "import sys\n"
        "from burnish.cli.main import main\n"
        "assert main(['retriever', '--help']) == 0 and main(['retriever', 'index']) == 2\n"
        "assert main(['retriever', 'query', '--index', 'nowhere', 'x']) == 2\n"
        "heavy = {'torch', 'transformers', 'faiss', 'fastapi'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "nowhere: no such index folder" in done.stderr


def test_an_index_is_built_and_asked(corpus, tmp_path, capsys):
    index = str(tmp_path / "index")
    assert main(["retriever", "index", "--corpus", corpus, "--output", index]) == 0
    told = capsys.readouterr()
    assert re.search(rf"{index}: 7 passages, bm25, 0 MB, \d+ s", told.out) and "burnish retriever query" in told.out
    assert "packing: 7/7 lines" in told.err and "counting words: 7/7 passages" in told.err

    query = ["retriever", "query", "--index", index, "tragedies of Shakespeare", "xyzzy"]
    assert main([*query, "--topk", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("tragedies of Shakespeare (bm25, 7 passages)\n  1. ") and "[a] Hamlet" in out
    assert "[b] Macbeth" not in out and "xyzzy (bm25, 7 passages)\n     nothing found" in out

    assert main([*query, "--json", "--corpus", corpus]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["query"] == "tragedies of Shakespeare" and second == {"query": "xyzzy", "hits": []}
    assert [hit["document"] for hit in first["hits"]] == [{"id": i, "contents": c} for i, c in PASSAGES[:2]]
    assert first["hits"][0]["score"] >= first["hits"][1]["score"] > 0


def test_passages_cannot_drive_the_terminal(tmp_path, capsys):
    corpus = write_corpus(tmp_path / "corpus.jsonl", [("\x1b[2J", '"Title\x1b]0;x\x07"\nword \x1b[31mred')])
    index = str(tmp_path / "index")
    assert main(["retriever", "index", "--corpus", str(corpus), "--output", index]) == 0
    assert main(["retriever", "query", "--index", index, "word"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\\x1b[31mred" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["idnex"], "unknown command: burnish retriever idnex. Did you mean `burnish retriever index`?"),
        (["index", "--output", "x"], "the following arguments are required: --corpus"),
        (["index", "--corpus", "no.jsonl", "--output", "x"], "cannot read the corpus no.jsonl: No such file"),
        (["index", "--corpus", "CORPUS", "--output", "x", "--kind", "dense"], "--kind dense needs --encoder FOLDER"),
        (["index", "--corpus", "CORPUS", "--output", "x", "--pooling", "cls"], "--encoder and its flags go with"),
        (["index", "--corpus", "CORPUS", "--output", "x", "--faiss", "flat"], "--faiss goes with --kind dense"),
        (["index", "--corpus", "CORPUS", "--output", "x", "--device", "cpu"], "--device goes with --kind dense"),
        (["index", "--corpus", "CORPUS", "--output", "x", "--encoder", "no"], "--encoder no: no config.json in it"),
        (["query", "--index", "x"], "the following arguments are required: QUERY"),
        (["query", "--index", "x", "q", "--topk", "0"], "argument --topk: 0 is not 1 or more"),
    ],
)
def test_mistakes_are_reported(words, message, corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["retriever", *(corpus if word == "CORPUS" else word for word in words)]) == 2
    assert message in capsys.readouterr().err


def test_a_corpus_line_that_is_not_json_is_named(tmp_path, capsys):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "0", "contents": "fine"}\noops\n')
    assert main(["retriever", "index", "--corpus", str(path), "--output", str(tmp_path / "index")]) == 2
    assert f"{path}, line 2: not JSON" in capsys.readouterr().err
