"""`burnish data show` from the command line: which rows, how, and mistakes in one line."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.cli.data_show import main, parser
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.entry.guard import guard

ROOT = Path(__file__).parents[2]


@pytest.fixture
def train(tmp_path):
    return str(write_parquet(arithmetic.rows("train", 20), tmp_path / "train.parquet"))


def headings(out):
    return [line for line in out.splitlines() if line.startswith("row ")]


def test_the_first_rows(train, capsys):
    assert main([train]) == 0
    out = capsys.readouterr().out
    assert headings(out) == [f"row {i} of {train}" for i in range(3)]
    first = arithmetic.rows("train", 1)[0]
    assert f"  user:\n    {first['prompt'][0]['content']}\n" in out
    assert f"  ground truth: {first['reward_model']['ground_truth']}\n" in out and "\x1b" not in out


def test_rows_by_number_at_random_and_by_value(train, capsys):
    main([train, "--rows", "7,2:4"])
    assert headings(capsys.readouterr().out) == [f"row {i} of {train}" for i in (7, 2, 3)]
    main([train, "--random", "5", "--seed", "3"])
    drawn = headings(capsys.readouterr().out)
    main([train, "--random", "5", "--seed", "3"])
    assert len(drawn) == 5 and headings(capsys.readouterr().out) == drawn
    main([train, "--where", "extra_info.index=11", "--where", "data_source=burnish/arithmetic"])
    assert headings(capsys.readouterr().out) == [f"row 11 of {train}"]


def test_the_text_the_policy_is_prompted_with(train, tiny_model, capsys):
    assert main([train, "--rows", "0", "--tokenizer", str(tiny_model)]) == 0
    question = arithmetic.rows("train", 1)[0]["prompt"][0]["content"]
    out = capsys.readouterr().out
    assert '  prompt, 27 tokens, ends with "tart|>assistant\\n":\n' in out
    assert f"    <|start|>user\n    {question}<|end|><|start|>assistant\n" in out


def test_the_prompt_may_be_in_another_column(tmp_path, tiny_model, capsys):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"question": "2+2?"}]))
    assert main([str(path), "--prompt-key", "question", "--tokenizer", str(tiny_model)]) == 0
    assert "<|start|>user\n    2+2?<|end|>" in capsys.readouterr().out


def test_without_a_tokenizer_no_torch_is_loaded(train):
    program = (
        "import sys\n"
        "from burnish.cli.data_show import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "assert not {'torch', 'transformers', 'hydra'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, train], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rows", "20"], "train.parquet has no row 20; its rows are 0 to 19"),
        (["--rows", "x"], "--rows x: expected a row number, a range such as 0:3, or several: 0,7,9"),
        (["--where", "data_source"], "--where data_source: expected COLUMN=VALUE, for example --where data_source="),
        (["--where", "data_sauce=x"], "no column 'data_sauce'; the columns are data_source, prompt, ability, "),
        (["--where", "data_source=x"], "no such row; data_source is mostly burnish/arithmetic (20)"),
        (["--random", "0"], "--random 0: ask for at least 1 row"),
        (["--rows", "1", "--random", "2"], "argument --random: not allowed with argument --rows"),
        (["--prompt-key", "question"], "Name the one with the prompts in --prompt-key"),
        (["--tokenizer", "empty"], "--tokenizer empty: empty: no config.json; the model path must name a Hugging Face"),
    ],
)
def test_mistakes_are_one_line_with_the_fix(train, options, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    rows = [{"data_source": "burnish/arithmetic", "text": "x"}]
    file = str(write_parquet(rows, "other.parquet")) if "--prompt-key" in options else train
    assert guard(main, [file, *options]) == 2
    out, error = capsys.readouterr()
    assert said in error and error.startswith("burnish: error: ") and error.count("\n") == 1 and not out


def test_files_that_cannot_be_read(tmp_path, capsys):
    assert guard(main, [str(tmp_path / "nowhere.parquet")]) == 2
    assert "data file not found: " in capsys.readouterr().err
    broken = tmp_path / "rows.jsonl.gz"
    broken.write_bytes(gzip.compress(b'{"prompt": "x"}\n' * 1000)[:40])
    assert guard(main, [str(broken)]) == 2
    error = capsys.readouterr().err
    assert "rows.jsonl.gz: cannot be read: Compressed file ended" in error and error.count("\n") == 1


def test_help_shows_an_example(capsys):
    with pytest.raises(SystemExit) as end:
        parser().parse_args(["--help"])
    assert end.value.code == 0
    assert "example:\n  burnish data show train.parquet --rows 0:3" in capsys.readouterr().out
