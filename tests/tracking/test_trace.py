"""The spans of a run, read again by step, and as a Chrome trace."""

import json
import os
import time

import pytest

from burnish import spans, waits
from burnish.cli.main import main
from burnish.errors import ConfigError
from burnish.tracking.timer import timed
from burnish.tracking.trace import read_trace
from tests.dashboard.made import write_trace


@pytest.fixture
def recorded(tmp_path):
    """A run folder in which this process records its spans."""
    spans.record(tmp_path, "controller")
    yield tmp_path
    spans.stop_recording()


def test_phases_are_written_when_the_step_is_over_and_after_a_failure(recorded):
    metrics = {"training/global_step": 1}
    with pytest.raises(ValueError), timed(metrics, "step"), timed(metrics, "gen"):
        assert not (recorded / "trace").exists()
        raise ValueError
    metrics["training/global_step"] = 2
    with timed(metrics, "step"), timed(metrics, "gen"):
        pass
    found = read_trace(recorded)["controller"]
    assert [(span["name"], span.get("step")) for span in found] == [
        ("gen", None),
        ("step", 1),
        ("gen", None),
        ("step", 2),
    ]
    inner, outer = found[2:]
    assert outer["start"] <= inner["start"] and inner["s"] <= outer["s"]


def test_waits_are_recorded_in_profiled_steps_only(recorded):
    with waits.waiting("tool", "uid 1", "before", 1.0):
        pass
    with spans.span("step"), spans.waits_recorded(), spans.waits_recorded(), waits.waiting("tool", "uid 1", "a", 1.0):
        pass
    assert [span["name"] for span in read_trace(recorded)["controller"]] == ["a", "step"]


def test_a_disk_that_fails_is_logged_once_and_ends_nothing(recorded, caplog):
    (recorded / "trace").write_text("")
    for _ in range(2):
        with spans.span("gen"):
            pass
    assert len(caplog.records) == 1


def test_a_step_is_found_in_the_files_of_all_processes(tmp_path):
    write_trace(tmp_path, steps=200)
    again = {"name": "step", "start": 9000, "s": 10, "thread": "MainThread", "step": 150}  # the run was resumed
    with (tmp_path / "trace/controller.jsonl").open("a") as file:
        file.write(json.dumps(again) + "\n")
    assert read_trace(tmp_path, 150)["controller"] == [again]
    with (tmp_path / "trace/agents-0.jsonl").open("a") as file:
        file.write('not json\n{"name": 3}\n' + json.dumps({"name": "x", "start": 10**400, "s": 1}) + '\n{"torn')
    (tmp_path / "trace/empty.jsonl").touch()
    found = read_trace(tmp_path, 151)
    assert list(found) == ["controller", "agents-0", "empty", "global_pool-0"]
    names = {process: [span["name"] for span in several] for process, several in found.items()}
    assert names["controller"] == ["gen", "update_actor", "step"] and names["global_pool-0"] == ["W.update_actor"]
    assert names["agents-0"] == ["tool 0", "tool 1", "tool 2"] and names["empty"] == []
    assert {span["start"] // 20 for several in found.values() for span in several} == {201}
    assert sum(map(len, read_trace(tmp_path).values())) == 200 * (4 + 1 + 3) + 1


def test_steps_are_found_though_the_clock_was_set_back(recorded, monkeypatch):
    now = time.time
    for step in range(1, 31):
        if step == 20:
            monkeypatch.setattr(time, "time", lambda: now() - 3600)
        with timed({"training/global_step": step}, "step"), spans.span("gen"):
            pass
    for step in (5, 19, 20, 30):
        assert [span["name"] for span in read_trace(recorded, step)["controller"]][-2:] == ["gen", "step"]


def test_the_command_writes_a_chrome_trace(tmp_path, capsys):
    write_trace(tmp_path)
    assert main(["trace", str(tmp_path), "--step", "2"]) == 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert list(names.values()) == ["controller", "agents-0", "global_pool-0"]
    blocks = {event["name"]: event for event in events if event["ph"] == "X"}
    assert (blocks["W.update_actor"]["ts"], blocks["W.update_actor"]["dur"]) == (7e6, 2e6)
    assert blocks["step"]["args"] == {"step": 2} and blocks["step"]["dur"] == 10e6
    begun, ended = ([event for event in events if event["ph"] == phase] for phase in "be")
    assert [event["id"] for event in begun] == [event["id"] for event in ended] and len(begun) == 3
    assert main(["trace", str(tmp_path), "--out", str(tmp_path / "all.json")]) == 0
    assert os.path.getsize(tmp_path / "all.json") > os.path.getsize(tmp_path / "trace.json")
    assert main(["trace", str(tmp_path), "--step", "7"]) == 2 and "has no step 7" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="has no trace/"):
        read_trace(tmp_path / "elsewhere")
