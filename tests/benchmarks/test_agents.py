"""benchmarks/agents.py: trajectories wait for their tools together, and the results say how long."""

import json
import sys

import pytest


def test_a_batch_waits_for_its_slow_tools_at_the_same_time(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["agents.py", "--trajectories", "64", "--seconds", "0.5", "--calls", "2"])
    script.main()
    results = json.loads(capsys.readouterr().out.splitlines()[-1])
    none, at_once, slow = results["batches"]
    assert [batch["calls"] for batch in (none, at_once, slow)] == [0, 2, 2] and none["one_by_one_s"] == 0
    assert slow["one_by_one_s"] == 64.0
    assert 1.0 <= slow["batch_s"] < 16.0  # a quarter: a busy machine, but not one call after another


def test_a_trajectory_without_its_calls_is_no_measurement(script, monkeypatch):
    monkeypatch.setattr(script, "CALL", "no call at all")
    with pytest.raises(SystemExit, match="did not make its 1 calls"):
        script.measure(1, 1, 0.0)
