"""benchmarks/run_ahead.py: every staleness does the same work, and the results say how long its steps took."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "run_ahead.py"
SMALL = ["--shape", "nano", "--prompts", "2", "--n", "2", "--tokens", "16", "--tool-seconds", "0.05",
         "--tool-share", "0.5", "--steps", "9", "--device", "cpu"]  # fmt: skip


def bench(*arguments):
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=280)


@pytest.mark.long
def test_a_table_and_a_line_of_metrics():
    done = bench(*SMALL, "--staleness", "0", "1")
    assert done.returncode == 0, done.stderr
    *table, line = done.stdout.splitlines()
    none, one = json.loads(line)
    assert (none["staleness"], one["staleness"]) == (0, 1) and none["age"] == 0 < one["age"] <= 1
    assert none["steps"] == one["steps"] == 3 and min(none["step, s"], one["step, s"]) > 0
    assert any("1.00×" in row for row in table)
