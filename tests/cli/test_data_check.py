"""`burnish data check` from the command line: findings, exit codes, JSON, and mistakes in one line."""

import errno
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.cli.data_check import main, parser
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.entry.guard import guard

ROOT = Path(__file__).parents[2]


@pytest.fixture
def splits(tmp_path):
    train = write_parquet(arithmetic.rows("train", 40), tmp_path / "train.parquet")
    return str(train), str(write_parquet(arithmetic.rows("test", 10), tmp_path / "test.parquet"))


@pytest.fixture
def jsonl(tmp_path):
    def write(*rows, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


def row(question="1+1?", truth="2", **fields):
    return {"data_source": "gsm8k", "prompt": question, "reward_model": {"ground_truth": truth}, **fields}


def test_good_files(splits, capsys):
    assert main(list(splits)) == 0
    out = capsys.readouterr().out
    assert f"{splits[0]}: 40 rows, RL prompts" in out and f"{splits[1]}: 10 rows, RL prompts" in out
    assert "reference answers: 40 scored, all pass" in out and "prompt length in characters: min 9 " in out
    assert out.endswith("no prompt is in two of the 2 files\n2 files, 50 rows: no problems\n")


def test_without_a_tokenizer_no_torch_is_loaded(splits):
    program = (
        "import sys\n"
        "from burnish.cli.data_check import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "assert not {'torch', 'transformers', 'hydra'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *splits], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row(data_source="mystery")], "rows that would be refused (1)"),
        ([row(truth=None)], "rows that would be refused (1)"),
        ([row(truth="two")], "rows that would be refused (1)"),
        ([row(truth="2", extra_info={"answer": "#### 3"})], "reference answers that fail their own scorer (1)"),
        ([row(" ")], "empty prompts (1)"),
        ([row(extra_info={"answer": ""})], "empty answers (1)"),
    ],
)
def test_problems_end_with_1(jsonl, capsys, rows, said):
    assert main([jsonl(*rows)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"1 file, 1 row: problems: {said}"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row(), row()], "2 rows: no problems; warnings: rows with a prompt that an earlier row has (1)"),
        (
            [row(extra_info={"answer": "it is 2"})],
            "1 row: no problems; warnings: worked answers that fail where the ground truth passes (1)",
        ),
        (
            [row(data_source="chat", reward_model={"style": "model"})],
            "1 row: no problems; warnings: rows whose reference answer is not checked (1)",
        ),
        ([row(), row("x", 3)], "2 rows: no problems; warnings: columns of mixed types (1)"),
    ],
)
def test_warnings_end_with_0(jsonl, capsys, rows, said):
    assert main([jsonl(*rows)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"1 file, {said}"


def test_overlap_ends_with_1(jsonl, capsys):
    files = [jsonl(row("new"), row("same  question"), name="a.jsonl"), jsonl(row("same question"), name="b.jsonl")]
    assert main(files) == 1
    out = capsys.readouterr().out
    assert f"problem: prompts that are both in {files[0]} and in {files[1]} (1)\n  row 1 = row 0\n" in out
    assert out.splitlines()[-1] == "2 files, 3 rows: problems: prompts in two files (1)"


def test_lengths_in_tokens_and_the_limit(splits, tiny_model, capsys):
    assert main([*splits, "--tokenizer", str(tiny_model), "--max-prompt-length", "64"]) == 0
    assert "prompt length in tokens: min 27 " in capsys.readouterr().out
    assert main([splits[1], "--tokenizer", str(tiny_model), "--max-prompt-length", "26"]) == 1
    assert "problem: rows over the length limit (10); the longest has 27 tokens (row 0)" in capsys.readouterr().out


def test_a_reward_function_of_the_user(jsonl, tmp_path, capsys):
    reward = tmp_path / "my_reward.py"
    reward.write_text("def mine(solution_str, ground_truth): return 0.2 * (solution_str == ground_truth == 'x')\n")
    rows = jsonl({"prompt": "a", "reward_model": {"ground_truth": "x"}}, row("b", "y", extra_info={"answer": "z"}))
    assert main([rows, "--reward", f"{reward}:mine"]) == 1
    out = capsys.readouterr().out
    assert "reference answers: 2 scored, 1 fail" in out and "row 1: extra_info.answer scores 0: 'z'" in out
    assert main([rows]) == 1 and "the row has no data_source" in capsys.readouterr().out


def test_json_holds_everything(jsonl, tmp_path, capsys):
    target = tmp_path / "found.json"
    assert main([jsonl(*[row()] * 30), "--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert found["problems"] == {} and found["warnings"] == {"rows with a prompt that an earlier row has": 29}
    assert found["files"][0]["warnings"]["duplicate"]["what"][0]["rows"] == list(range(1, 30))


def test_json_that_cannot_be_written_leaves_the_old_file(jsonl, tmp_path, monkeypatch, capsys):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target = tmp_path / "found.json"
    target.write_text("of yesterday")
    monkeypatch.setattr(os, "fsync", full)
    assert guard(main, [jsonl(row()), "--json", str(target)]) == 2
    assert f"cannot write {target}: the disk is full" in (error := capsys.readouterr().err) and "with --json" in error
    assert target.read_text() == "of yesterday"


def broken_gz(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "x"}\n' * 1000)[:40])
    return [str(path)]


def no_tokenizer(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "x"}\n')
    (tmp_path / "empty").mkdir()
    return [str(tmp_path / "rows.jsonl"), "--tokenizer", str(tmp_path / "empty")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ([], "burnish data check: the following arguments are required: FILE"),
        (["nowhere.parquet"], "data file not found: nowhere.parquet (working directory: "),
        (["a.parquet", "--max-prompt-length", "9"], "--max-prompt-length counts tokens: give the model's --tokenizer"),
        (["a.parquet", "--max-prompt-length", "0", "--tokenizer", "x"], "--max-prompt-length 0: a prompt has at least"),
        (
            ["a.parquet", "--json", "nowhere/found.json"],
            "--json nowhere/found.json: its folder does not exist; create it",
        ),
        (broken_gz, "rows.jsonl.gz: cannot be read: Compressed file ended"),
        (no_tokenizer, "empty: no config.json; the model path must name a Hugging Face model folder"),
    ],
)
def test_mistakes_are_one_line_with_the_fix(line, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert guard(main, line(tmp_path) if callable(line) else line) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("burnish: error: ") and error.count("\n") == 1


def test_a_column_that_is_missing(jsonl, capsys):
    assert guard(main, [jsonl({"question": "x"})]) == 2
    assert "no column 'prompt'; the columns are question. Name the one with the prompts in" in capsys.readouterr().err


def test_a_reward_function_that_is_missing_is_reported_before_rows_are_read(jsonl, capsys):
    assert guard(main, [jsonl(row()), "--reward", "nowhere.py"]) == 2
    out, error = capsys.readouterr()
    assert "--reward nowhere.py: custom_reward_function.path=nowhere.py: no such file" in error
    assert "checking" not in error and not out


def test_help_shows_an_example(capsys):
    with pytest.raises(SystemExit) as end:
        parser().parse_args(["--help"])
    assert end.value.code == 0
    assert "example:\n  burnish data check train.parquet test.parquet --tokenizer" in capsys.readouterr().out
