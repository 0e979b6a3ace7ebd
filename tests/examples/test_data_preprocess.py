"""The scripts of examples/data_preprocess, each on a small folder, as users call them."""

import json
import runpy
from pathlib import Path

import pytest

from burnish.data.files import describe

FOLDER = Path(__file__).parents[2] / "examples" / "data_preprocess"
GEOMETRY = {"problem": "Find x.", "answer": "48"}
RECORDS = {
    "gsm8k": {"question": "One and one?", "answer": "#### 2"},
    "gsm8k_multiturn_w_tool": {"question": "One and one?", "answer": "#### 2"},
    "math_dataset": {"problem": "1+1", "solution": "$\\boxed{2}$"},
    "geo3k": GEOMETRY,
    "geo3k_multiturn_w_tool": GEOMETRY,
    "search_qa": {"question": "Where?", "golden_answers": ["Rome"]},
    "preference": {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"},
    "mbpp": {"prompt": "Do it.", "code": "x = 1", "test_list": ["assert x"]},
    "countdown": None,
}


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def run(name: str, *words: str) -> int:
        script = FOLDER / f"{name}.py"
        monkeypatch.setattr("sys.argv", [str(script), *words])
        with pytest.raises(SystemExit) as caught:
            runpy.run_path(str(script), run_name="__main__")
        return caught.value.code

    return run


def source_of(name: str, folder: Path) -> list[str]:
    """Where a script finds its records; a task that makes them gets sizes instead."""
    record = RECORDS[name]
    if record is None:
        return ["--train-size", "2", "--test-size", "1"]
    for split, count in (("train", 2), ("test", 1)):
        (folder / f"{split}.jsonl").write_text((json.dumps(record) + "\n") * count)
    return ["--local_dataset_path", str(folder)]


@pytest.mark.parametrize("name", [path.stem for path in sorted(FOLDER.glob("*.py"))])
def test_each_script_writes_both_splits(name, run, tmp_path):
    assert run(name, "--local_dir", str(tmp_path / "out"), *source_of(name, tmp_path)) == 0
    assert [describe(tmp_path / "out" / f"{split}.parquet").rows for split in ("train", "test")] == [2, 1]


@pytest.mark.parametrize(("name", "task"), [("math_dataset", "math"), ("gsm8k_multiturn_w_tool", "gsm8k_tool")])
def test_without_a_folder_the_files_go_to_the_home_folder(name, task, run, tmp_path):
    assert run(name, *source_of(name, tmp_path)) == 0
    assert (tmp_path / "home" / "data" / task / "test.parquet").is_file()


def test_other_flags_reach_the_command(run, tmp_path, capsys):
    words = [*source_of("geo3k", tmp_path), "--local_dir", str(tmp_path)]
    assert run("geo3k", *words, "--text-only") == 0
    assert run("geo3k", *words) == 2
    assert "add --overwrite" in capsys.readouterr().err
    assert run("geo3k", *words, "--overwrite", "--nonsense") == 2
    assert "unrecognized arguments: --nonsense" in capsys.readouterr().err
    assert run("gsm8k", "--help") == 0
    text = capsys.readouterr().out
    assert "--local_dir" in text and "--local_dataset_path" in text and "burnish data make gsm8k" in text
    assert run("countdown", "--help") == 0
    assert "--local_dataset_path" not in capsys.readouterr().out
