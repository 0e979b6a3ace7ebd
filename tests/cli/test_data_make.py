"""`burnish data make`: what users type, the files they get, and one line where something is wrong."""

import gzip
import json
import os
from pathlib import Path

import huggingface_hub
import pytest

from burnish.cli import data_make
from burnish.cli.main import main
from burnish.config.data import DataConfig
from burnish.data.dataset import RLDataset
from burnish.data.files import read_rows, write_parquet
from burnish.data.tasks import TASKS


def problems(start, stop):
    return [{"question": f"{i} apples and one more?", "answer": f"#### {i + 1}"} for i in range(start, stop)]


def write_jsonl(path: Path, rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with gsm8k/train.jsonl.gz and gsm8k/test.json, where the user stands."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gsm8k").mkdir()
    lines = "".join(json.dumps(row) + "\n" for row in problems(0, 30))
    (tmp_path / "gsm8k" / "train.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "gsm8k" / "test.json").write_text(json.dumps(problems(30, 40)))
    return tmp_path


def make(*words: str) -> int:
    return main(["data", "make", *words])


def refused(capsys, *words: str) -> str:
    """What is said of a command that cannot be done: one line, and nothing is written."""
    assert make(*words) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and streams.err.count("\n") == 1
    return streams.err.removeprefix("burnish: error: ").strip()


def test_a_folder_becomes_two_files_and_the_next_command_is_said(capsys):
    assert make("gsm8k", "--source", "gsm8k", "--out", "data/gsm8k") == 0
    assert capsys.readouterr().out.splitlines() == [
        "data/gsm8k/train.parquet: 30 rows",
        "data/gsm8k/test.parquet: 10 rows",
        "next: burnish data check data/gsm8k/train.parquet data/gsm8k/test.parquet",
    ]
    assert sorted(os.listdir("data/gsm8k")) == ["test.parquet", "train.parquet"]
    dataset = RLDataset(["data/gsm8k/test.parquet"], None, DataConfig())
    assert dataset[9]["reward_model"]["ground_truth"] == "40" and dataset[9]["index"] == 9


def test_one_file_of_which_a_part_is_kept_apart_and_one_split_alone(capsys):
    answers = [{"problem": f"p{i}", "answer": str(i), "difficulty": 1.0} for i in range(20)]
    write_jsonl(Path("math.jsonl"), [*answers, {"problem": "p", "answer": None, "difficulty": 1.0}])
    assert make("math", "--train", "math.jsonl", "--test-size", "5", "--out", "data/math") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "data/math/train.parquet: 15 rows; skipped: 1 because 'answer' is empty"
    assert lines[1] == "data/math/test.parquet: 5 rows"
    train, test = (read_rows(f"data/math/{split}.parquet") for split in ("train", "test"))
    asked = [{row["extra_info"]["question"] for row in rows} for rows in (train, test)]
    assert len(asked[0] | asked[1]) == 20 and not asked[0] & asked[1]
    assert {(row["extra_info"]["split"], row["extra_info"]["index"] < 20) for row in test} == {("test", True)}
    assert make("gsm8k", "--test", "gsm8k/test.json", "--out", "my data") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "next: burnish data check 'my data/test.parquet'"
    assert make("multiply", "--train-size", "0", "--test-size", "3", "--out", "a") == 0
    assert os.listdir("my data") == os.listdir("a") == ["test.parquet"]


def test_the_hub_is_asked_where_no_files_are_given(monkeypatch, place):
    def snapshot_download(repo_id, **asked):
        assert (repo_id, asked["revision"]) == ("openai/gsm8k", "refs/convert/parquet")
        for i, split in enumerate(("train", "test")):
            write_parquet(problems(10 * i, 10 * i + 5), place / "cache" / "main" / split / "0000.parquet")
        return str(place / "cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert make("gsm8k_tool", "--out", "a") == 0
    row = RLDataset(["a/test.parquet"], None, DataConfig())[0]
    assert row["agent_name"] == "tool_agent" and row["interaction_kwargs"]["ground_truth"] == "11"


def test_without_network_or_permission_the_error_says_what_to_do(capsys, monkeypatch):
    assert "google-research-datasets/mbpp could not be fetched from the hub (" in refused(capsys, "mbpp", "--out", "a")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    said = refused(capsys, "gsm8k", "--source", "gsm8k", "--out", "a/b")
    assert said == f"--out a/b: no permission to write in {Path.cwd()}; choose another folder"


def test_scorers_and_renamed_columns():
    write_jsonl(Path("a.jsonl"), [{"task": "p", "answer": "1"}])
    source = ("--rename", "task=problem", "--data-source", "lighteval/MATH")
    assert make("math", "--train", "a.jsonl", *source, "--out", "o") == 0
    (row,) = read_rows("o/train.parquet")
    assert row["data_source"] == "lighteval/MATH" and row["extra_info"]["question"] == "p"


def test_files_that_are_there_are_kept_unless_asked_otherwise(capsys):
    words = ("multiply", "--train-size", "3", "--test-size", "3", "--out", "a")
    assert make(*words) == 0
    before = Path("a/train.parquet").read_bytes()
    capsys.readouterr()
    message = refused(capsys, *words, "--seed", "5")
    assert message.startswith("already exists: a/train.parquet and a/test.parquet; add --overwrite")
    assert Path("a/train.parquet").read_bytes() == before
    assert make(*words, "--seed", "5", "--overwrite") == 0
    assert Path("a/train.parquet").read_bytes() != before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gsm8", "--out", "a"], "no such task: gsm8; did you mean gsm8k? There are: gsm8k, "),
        (["--out", "a", "gsm8k"], "burnish data make: name a task before --out; `burnish data make --help` lists them"),
        (["gsm8k"], "the following arguments are required: --out. `burnish data make gsm8k --help` shows an example"),
        (["gsm8k", "--out", "a", "--seed", "1"], "unrecognized arguments: --seed 1"),
        (["gsm8k", "--source", "nowhere", "--hub", "x/y", "--out", "a"], "give one"),
        (["gsm8k", "--source", ".", "--out", "a"], ".: no train file; looked for train.*, train-* and train/* ending"),
        (["gsm8k", "--train", "no.jsonl", "--out", "a"], "data file not found: no.jsonl (working directory: "),
        (["math", "--train", "gsm8k/test.json", "--test-size", "10", "--out", "a"], "--test-size 10 leaves nothing to"),
        (["gsm8k", "--test", "a", "--test-size", "1", "--out", "a"], "--test gives the test split, and --test-size"),
        (["multiply", "--out", "gsm8k/test.json/a"], "gsm8k/test.json is a file, not a folder; choose another folder"),
        (["multiply", "--train-size", "-1", "--out", "a"], "--train-size -1: give a number of rows, 0 for none"),
        (["multiply", "--train-size", "0", "--test-size", "0", "--out", "a"], "makes nothing: ask for some rows"),
        (["multiply", "--test-size", "many", "--out", "a"], "argument --test-size: invalid int value: 'many'"),
        (["multiply", "--digits", "1", "--out", "a"], "different train questions could be found with these options"),
        (["countdown", "--numbers", "one", "--out", "a"], "--numbers one: write counts from 2 to 8"),
    ],
)
def test_mistakes_are_one_line_with_the_fix(capsys, words, message):
    assert message in refused(capsys, *words)
    assert not Path("a").exists()


def test_what_is_wrong_with_a_file_is_one_line(capsys):
    write_jsonl(Path("types.jsonl"), [*problems(0, 1), {"question": ["?"], "answer": "#### 1"}])
    said = refused(capsys, "gsm8k", "--train", "types.jsonl", "--out", "a")
    assert "types.jsonl, row 1 (the first is 0): column 'question' holds ['?'] (list); every row needs text" in said
    write_jsonl(Path("half.jsonl"), [{"question": "half \ud83d of it", "answer": "#### 1"}])
    said = refused(capsys, "gsm8k", "--train", "half.jsonl", "--out", "a")
    assert "a/train.parquet: the text 'half \\ud83d of it" in said and "has a lone surrogate; fix it" in said
    assert not Path("a").exists()


def test_help_lists_every_task_what_it_reads_and_what_is_its_own(capsys):
    assert make("--help") == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text and listed in text for name, listed in TASKS.items())
    assert "burnish data make gsm8k --source ~/downloads/gsm8k --out data/gsm8k" in text
    assert make() == 0
    assert capsys.readouterr().out == text
    answers = "golden_answers|answers|answer  the right answer, or a list"
    for task, own in (("search_qa", answers), ("geo3k", "--text-only")):
        with pytest.raises(SystemExit):
            make(task, "--help")
        assert own in capsys.readouterr().out
    assert make("gsm8", "--debug") == 2 and "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("name", TASKS)
def test_the_help_of_a_task_has_an_example_that_can_be_typed(name, capsys):
    with pytest.raises(SystemExit) as caught:
        make(name, "--help")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: burnish data make {name} ") and TASKS[name] in text
    example = text.splitlines()[-1].split()
    assert example[:4] == ["burnish", "data", "make", name]
    data_make.parse(name, example[4:])
