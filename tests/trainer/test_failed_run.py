"""What a run that fails leaves in its folder, and what it shows with BURNISH_LOGGING_LEVEL=DEBUG."""

import json
import re
from pathlib import Path

from burnish.cli.main import main
from tests.trainer.conftest import GRPO


def test_a_failed_run_leaves_its_error_and_what_it_showed(job, reward, monkeypatch, capsys):
    monkeypatch.setenv("BURNISH_LOGGING_LEVEL", "DEBUG")
    reward("raise ValueError('no verdict')")
    code = main(["ppo", *job, *GRPO, "data.val_files=null", "reward.retries=0"])
    shown = capsys.readouterr().err
    assert code == 2 and "no verdict" in shown
    error = json.loads(Path("run/error.json").read_text())
    assert (error["type"], error["phase"], error["step"]) == ("RewardError", "gen", None)
    assert error["message"] in shown and "Traceback" in error["traceback"]
    kept = Path("run/console.log").read_text()
    assert f"burnish: error: {error['message']}" in kept
    for line in (
        r"DEBUG burnish\.entry\.guard: burnish \S+, Python 3\S+, in /",
        r"DEBUG burnish\.controller\.worker: ActorRolloutRefWorker\.init_model begins",
        r"DEBUG burnish\.waits: engine: .*: \d+\.\d+ s",
        r"DEBUG burnish\.waits: reward: .*: \d+\.\d+ s",
        r"DEBUG burnish\.tracking\.timer: gen: \d+\.\d+ s",
    ):
        assert re.search(line, kept), line
    assert main(["status", "run"]) == 0
    assert "error     RewardError in gen, 0 s ago: " in re.sub(r"\d+ s ago", "0 s ago", capsys.readouterr().out)
