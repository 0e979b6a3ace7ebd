"""benchmarks/controller.py: every column crosses once, and what is fitted and predicted follows from the results."""

import json

import pytest

from tests.benchmarks.conftest import run as run_script

pytest.importorskip("ray")


@pytest.mark.ray
@pytest.mark.long
def test_a_step_is_measured_and_each_column_crosses_once(script):
    sizes = "--workers 1 2 --batches 16x2048 --steps 2 --light 2 --calls 2 --seconds 0.05"
    done = run_script("controller", *sizes.split())
    results = json.loads(done.stdout.splitlines()[-1])
    assert [(run["workers"], run["agents"]) for run in results["steps"]] == [(1, 1), (2, 2)]
    for run in results["steps"]:
        # responses and their mask, and 9 columns of numbers; prompts; ids, mask and positions of both
        whole = 16 * (2048 * (2 * 8 + 9 * 4) + 512 * 8 + 2560 * 3 * 8)
        assert run["added"] > 0 and 5 <= run["columns"] == run["puts"] <= 15
        assert whole / 3 < run["put_bytes"] <= whole  # less what came from workers, which is in the store already
        assert run["got_bytes"] > 16 * 2048 * 5 * 4
        assert run["added"] == pytest.approx(sum(run[name] for name in [*script.SHOWN, "elsewhere"]))
    assert [calls["workers"] for calls in results["calls"]] == [2, 1000]
    assert results["predicted"]["sending calls"] > 0 and "first bottleneck: " in done.stdout


def test_the_line_is_found_and_extended(script):
    runs = [
        {"workers": workers, "put_bytes": mb * 5e5, "got_bytes": mb * 5e5, "cpu": 0.01 + 0.002 * workers + 0.003 * mb}
        for workers in (1, 2, 4)
        for mb in (1, 10)
    ]
    line = script.fitted(runs, "cpu")
    assert (line["a"], line["b"], line["c"]) == pytest.approx((0.01, 0.002, 0.003)) and line["largest error"] < 1e-9
    calls = {"alone: send": 0.1, "alone: wait": 0.2, "alone: cpu": 0.2}
    calls |= {"with batch: send": 1.0, "with batch: wait": 2.0, "with batch: cpu": 2.5}
    guess = script.predicted(line, line, calls, 10.0)
    assert guess["line of added"] == guess["line of CPU"] == pytest.approx(0.01 + 2.0 + 0.03)
    assert (guess["sending calls"], guess["waiting for answers"]) == pytest.approx((5.3, 10.6))
    assert guess["calls and columns"] == pytest.approx(5.3 + 10.6 + 0.03 + 0.01)
