"""benchmarks/run_ahead.py: every staleness does the same work, and the results say how long its steps took."""

import json

import pytest

from tests.benchmarks.conftest import run

SMALL = "--shape nano --prompts 2 --n 2 --tokens 16 --tool-seconds 0.05 --tool-share 0.5 --steps 9 --device cpu"


@pytest.mark.long
def test_a_table_and_a_line_of_metrics():
    done = run("run_ahead", *SMALL.split(), "--staleness", "0", "1")
    *table, line = done.stdout.splitlines()
    none, one = json.loads(line)
    assert (none["staleness"], one["staleness"]) == (0, 1) and none["age"] == 0 < one["age"] <= 1
    assert none["steps"] == one["steps"] == 3 and min(none["step, s"], one["step, s"]) > 0
    assert any("1.00×" in row for row in table)
