"""benchmarks/agents.py: trajectories wait for their tools together, and the results say how long."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "agents.py"


@pytest.fixture(scope="module")
def agents():
    spec = importlib.util.spec_from_file_location("benchmarks_agents", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_batch_waits_for_its_slow_tools_at_the_same_time(agents, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["agents.py", "--trajectories", "64", "--seconds", "0.5", "--calls", "2"])
    agents.main()
    results = json.loads(capsys.readouterr().out.splitlines()[-1])
    none, at_once, slow = results["batches"]
    assert [batch["calls"] for batch in (none, at_once, slow)] == [0, 2, 2] and none["one_by_one_s"] == 0
    assert slow["one_by_one_s"] == 64.0
    assert 1.0 <= slow["batch_s"] < 16.0  # a quarter: a busy machine, but not one call after another


def test_a_trajectory_without_its_calls_is_no_measurement(agents, monkeypatch):
    monkeypatch.setattr(agents, "CALL", "no call at all")
    with pytest.raises(SystemExit, match="did not make its 1 calls"):
        agents.measure(1, 1, 0.0)


def test_sizes_that_measure_nothing_are_refused(agents, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["agents.py", "--calls", "0"])
    with pytest.raises(SystemExit):
        agents.main()
    assert "--calls must be at least 1" in capsys.readouterr().err
