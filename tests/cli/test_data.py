"""`burnish data check` and `burnish data show`: findings, exit codes, JSON, and which rows are shown."""

import errno
import json
import os

import pytest

from burnish.cli.data import check, show
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.entry.guard import guard


@pytest.fixture
def splits(tmp_path):
    train = write_parquet(arithmetic.rows("train", 40), tmp_path / "train.parquet")
    return str(train), str(write_parquet(arithmetic.rows("test", 10), tmp_path / "test.parquet"))


@pytest.fixture
def jsonl(tmp_path):
    def write(*rows):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


def row(question="1+1?", truth="2", **fields):
    return {"data_source": "gsm8k", "prompt": question, "reward_model": {"ground_truth": truth}, **fields}


FINE, JUDGED = "no problems; warnings:", {"style": "model"}


def test_good_files_and_lengths_in_tokens(splits, capsys, tiny_model):
    assert check(list(splits)) == 0
    out = capsys.readouterr().out
    assert f"{splits[0]}: 40 rows, RL prompts" in out and f"{splits[1]}: 10 rows, RL prompts" in out
    assert "reference answers: 40 scored, all pass" in out and "prompt length in characters: min 9 " in out
    assert out.endswith("no prompt is in two of the 2 files\n2 files, 50 rows: no problems\n")
    assert check([*splits, "--tokenizer", str(tiny_model), "--max-prompt-length", "64"]) == 0
    assert "prompt length in tokens: min 27 " in capsys.readouterr().out
    assert check([splits[1], "--tokenizer", str(tiny_model), "--max-prompt-length", "26"]) == 1
    assert "problem: rows over the length limit (10); the longest has 27 tokens (row 0)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row(data_source="mystery")], "problems: rows that would be refused (1)"),
        ([row(truth=None)], "problems: rows that would be refused (1)"),
        ([row(truth="two")], "problems: rows that would be refused (1)"),
        ([row(extra_info={"answer": "#### 3"})], "problems: reference answers that fail their own scorer (1)"),
        ([row(" ")], "problems: empty prompts (1)"),
        ([row(extra_info={"answer": ""})], "problems: empty answers (1)"),
        ([row(), row()], f"{FINE} rows with a prompt that an earlier row has (1)"),
        ([row(extra_info={"answer": "it is 2"})], f"{FINE} worked answers that fail where the ground truth passes (1)"),
        ([row(data_source="chat", reward_model=JUDGED)], f"{FINE} rows whose reference answer is not checked (1)"),
        ([row(), row("x", 3)], f"{FINE} columns of mixed types (1)"),
    ],
)
def test_problems_end_with_1_and_warnings_with_0(jsonl, capsys, rows, said):
    assert check([jsonl(*rows)]) == said.startswith("problems")
    count = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    assert capsys.readouterr().out.splitlines()[-1] == f"1 file, {count}: {said}"


def test_a_reward_function_of_the_user(jsonl, tmp_path, capsys):
    reward = tmp_path / "my_reward.py"
    reward.write_text("def mine(solution_str, ground_truth): return 0.2 * (solution_str == ground_truth == 'x')\n")
    rows = jsonl({"prompt": "a", "reward_model": {"ground_truth": "x"}}, row("b", "y", extra_info={"answer": "z"}))
    assert check([rows, "--reward", f"{reward}:mine"]) == 1
    out = capsys.readouterr().out
    assert "reference answers: 2 scored, 1 fail" in out and "row 1: extra_info.answer scores 0: 'z'" in out
    assert check([rows]) == 1 and "the row has no data_source" in capsys.readouterr().out
    own = jsonl(row(data_source="mine/sums", truth="x"))
    assert check([own, "--reward", f"{reward}:mine"]) == 0
    assert check([own]) == 1 and "give --reward my_reward.py here, custom_reward_function" in capsys.readouterr().out


def test_json_holds_everything_or_stays_as_it_was(jsonl, tmp_path, monkeypatch, capsys):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target = tmp_path / "found.json"
    words = [jsonl(*[row()] * 30), "--json", str(target)]
    assert check(words) == 0
    found = json.loads(target.read_text())
    assert found["problems"] == {} and found["warnings"] == {"rows with a prompt that an earlier row has": 29}
    assert found["files"][0]["warnings"]["duplicate"]["what"][0]["rows"] == list(range(1, 30))
    monkeypatch.setattr(os, "fsync", full)
    assert guard(check, words) == 2
    assert f"cannot write {target}: the disk is full" in (error := capsys.readouterr().err) and "with --json" in error
    assert json.loads(target.read_text()) == found


def test_rows_are_the_first_or_chosen_by_number_at_random_or_by_value(splits, capsys):
    def shown(*flags):
        assert show([train, *flags]) == 0
        return [line.partition(" of ") for line in capsys.readouterr().out.splitlines() if line.startswith("row ")]

    train = splits[0]
    assert shown() == [(f"row {i}", " of ", train) for i in range(3)]
    assert [row for row, *_ in shown("--rows", "7,2:4")] == ["row 7", "row 2", "row 3"]
    drawn = shown("--random", "5", "--seed", "3")
    assert len(drawn) == 5 and shown("--random", "5", "--seed", "3") == drawn
    chosen = shown("--where", "extra_info.index=11", "--where", "data_source=burnish/arithmetic")
    assert [row for row, *_ in chosen] == ["row 11"]


def test_the_text_the_policy_is_prompted_with_from_any_column(jsonl, tiny_model, capsys):
    assert show([jsonl({"question": "2+2?"}), "--prompt-key", "question", "--tokenizer", str(tiny_model)]) == 0
    out = capsys.readouterr().out
    assert '  prompt, 22 tokens, ends with "tart|>assistant\\n":\n' in out and "\x1b" not in out
    assert "    <|start|>user\n    2+2?<|end|><|start|>assistant\n" in out
