"""examples/rlhf from end to end, shortened: its script notes its commands, which are then run in this process."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.cli.main import main
from burnish.tracking.jsonl import read_metrics
from tests.examples.conftest import noting, on_path

EXAMPLE = Path(__file__).parents[2] / "examples" / "rlhf"
SMALL = {"QUESTIONS": "128", "SFT_STEPS": "16", "RM_STEPS": "20", "PPO_STEPS": "8"}
ACCURACY = "val-core/burnish/arithmetic/acc/mean@1"


@pytest.fixture
def commands(tmp_path, monkeypatch) -> list[list[str]]:
    """What the script runs, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    notes = tmp_path / "notes.jsonl"
    programs = {name: noting(name, notes) for name in ("burnish", "python3")}
    environment = on_path(tmp_path / "bin", programs) | SMALL
    subprocess.run([str(EXAMPLE / "run.sh"), "trainer.logger=jsonl"], env=environment, check=True)
    return [json.loads(line)[1:] for line in notes.read_text().splitlines()]


def run(program: str, *words: str) -> None:
    if program == "burnish":
        assert main(list(words)) == 0
        return
    argv, sys.argv = sys.argv, list(words)
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        sys.argv = argv


@pytest.mark.slow
def test_the_policy_gets_better_at_what_was_preferred(commands, capsys):
    assert [words[1] for words in commands if words[0] == "burnish"] == ["sft", "generate", "rm", "ppo"]
    for words in commands:
        run(*words)
    *_, rm = read_metrics("outputs/rlhf/rm")
    assert rm["val/accuracy"] > 0.8, "right answers are worked out, wrong ones mostly guessed"
    ppo = read_metrics("outputs/rlhf/ppo")
    assert all("critic/vf_loss" in line and "actor/reward_kl_penalty" in line for line in ppo[1:])
    assert ppo[-1]["reward_model/score/mean"] > ppo[1]["reward_model/score/mean"]
    first, *_, last = [line[ACCURACY] for line in ppo if ACCURACY in line]
    assert last > first + 0.15
    assert f"{first:.2f} after step 0, {last:.2f} after step 8" in capsys.readouterr().out
