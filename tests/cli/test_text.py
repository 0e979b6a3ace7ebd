"""Texts of data, models and file names in what commands print and write: nothing commands the terminal, nothing is an
error because it cannot be encoded, and nothing is lost."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from burnish.cli.main import main
from burnish.config.trainer import RunConfig
from burnish.literal import json_text
from burnish.tracking.run_folder import RunFolder
from burnish.tracking.tracker import Tracker

pytestmark = pytest.mark.hostile
HOSTILE = "a\x1b[2J\x1b]0;title\x07\x9b31m\x08\rb\u202ec\u2028\x00d"
NAME = "b\x1b[2J\x9b31m\u202e\udcff"  # of a file: no zero byte, and a byte that is no UTF-8
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\ud800-\udfff]")
REWARD = """
def compute_score(solution_str):
    return {"score": 1.0, "acc": 1, "pred": solution_str, solution_str[:20]: 1, "why/../x": 0.5}
"""


@pytest.fixture
def rows(tmp_path, monkeypatch) -> str:
    """A file with a hostile name and hostile rows."""
    monkeypatch.chdir(tmp_path)
    row = {
        "prompt": [{"role": "user\x1b[1m", "content": HOSTILE}],
        "data_source": HOSTILE,
        "reward_model": {"style": "rule", "ground_truth": HOSTILE},
        "responses": [HOSTILE, HOSTILE + "x"],
        HOSTILE: HOSTILE,
    }
    Path(f"{NAME}.jsonl").write_text(json.dumps(row) + "\n")
    Path("reward\x1b[1m.py").write_text(REWARD)
    return f"{NAME}.jsonl"


EVAL_KEYS = ['custom_reward_function.path="reward\x1b[1m.py"', 'data.output_path="NAME.json"']
WORDS = {
    "data check": (1, ["data", "check", "ROWS"]),
    "data show": (0, ["data", "show", "ROWS"]),
    "data show, no such row": (2, ["data", "show", "ROWS", "--where", f"data_source={HOSTILE}x"]),
    "eval": (0, ["eval", 'data.path="ROWS"', *EVAL_KEYS]),
    "eval, built-in scorers": (2, ["eval", 'data.path="ROWS"']),
    "status": (0, ["status", "NAME"]),
    "status as JSON": (0, ["status", "NAME", "--json"]),
    "status of nothing": (2, ["status", "NAME.not"]),
    "an unknown command": (2, [HOSTILE]),
    "an unknown key": (2, ["ppo", f"{NAME}=1"]),
    "a file that is not there": (2, ["data", "check", f"{NAME}.txt"]),
    "a retriever's index that is not there": (2, ["retriever", "query", "--index", NAME, HOSTILE]),
}


ASCII = ("data check", "eval", "status as JSON", "an unknown key")  # one of each way to print


@pytest.mark.parametrize(
    ("name", "encoding"), [*((name, "utf-8") for name in WORDS), *((name, "ascii") for name in ASCII)]
)
def test_what_is_printed_commands_no_terminal(rows, capsys, name, encoding):
    expected, words = WORDS[name]
    sys.stdout.reconfigure(encoding=encoding, errors="strict")
    with RunFolder(NAME) as folder, Tracker(RunConfig(logger=[]), folder) as tracker:
        tracker.event(HOSTILE, what=HOSTILE)
        tracker.log({f"val-core/{HOSTILE}/acc/mean@2": 1.0}, 1)
    code = main([word.replace("ROWS", rows).replace("NAME", NAME) for word in words])
    out, err = capsys.readouterr()
    assert not COMMANDS.search(out + err), COMMANDS.search(out + err)
    assert code == expected and "Traceback" not in err, err
    assert "a\\x1b[2J" in out + err or "b\\x1b[2J" in out + err or "\\u001b[2J" in out + err, out + err
    for path in Path().rglob("*.json*"):
        if os.fspath(path) != rows:
            text = path.read_text(encoding="utf-8")
            assert not COMMANDS.search(text.replace("\n", "")), path
            for line in text.splitlines() if path.suffix == ".jsonl" else [text]:
                json.loads(line)


@pytest.mark.parametrize("value", [HOSTILE, {"k\x9b": [HOSTILE, "漢 🙂 é\n\t"]}, "\udcff", 1.5, None])
def test_json_keeps_every_character(value):
    text = json_text(value)
    assert json.loads(text) == value and not COMMANDS.search(text)
