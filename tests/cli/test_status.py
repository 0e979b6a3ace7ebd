"""`burnish status`: runs that are under way, silent, done, failed and dead; folders that hold none; its help."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from burnish.cli.main import main
from burnish.config.trainer import TrainerConfig
from burnish.errors import ConfigError, RewardError
from burnish.tracking import RunFolder, Tracker, watchdog
from burnish.tracking.run_status import read_status
from burnish.tracking.timer import timed
from burnish.tracking.watchdog import Watchdog
from burnish.waits import waiting
from tests.processes import until


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(watchdog, "LOOK_S", 0.02)
    monkeypatch.setattr(watchdog, "STATUS_S", 0.02)
    trainer = TrainerConfig(default_local_dir=str(tmp_path / "run"), logger=["jsonl"])
    trainer.project_name = trainer.experiment_name = "x"
    return trainer


@contextmanager
def begun(trainer):
    with RunFolder(trainer.default_local_dir) as folder, Tracker(trainer, folder, total_steps=80) as tracker:
        yield folder, tracker


def finished(trainer):
    with begun(trainer) as (folder, tracker):
        tracker.log({"reward/mean": 0.5}, 80)
    return folder


def of_another_process(folder):
    file = folder.path / "status/controller.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pid": 1}))


def status_of(folder, **expected):
    def seen():
        status = read_status(folder)
        return status if all(getattr(status, key) == value for key, value in expected.items()) else None

    return until(seen)


def test_running_run_as_text_and_json(run, capsys):
    with begun(run) as (folder, tracker):
        tracker.log({"reward/mean": 0.5}, 12)
        tracker.event("checkpoint", step=12)
        status_of(folder.path, state="running")
        with waiting("tool", "uid 3, sample 1", "tool search: execute", 60.0), waiting("engine", "uid 4", "r", None):
            both = {"tool": 1, "engine": 1}
            until(lambda: any(process.counts == both for process in read_status(folder.path).processes))
            assert main(["status", str(folder.path)]) == 0
            text = capsys.readouterr().out
            assert main(["status", str(folder.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["step"], found["steps"]) == ("running", 12, 80)
    assert found["processes"][0]["name"] == "controller" and found["processes"][0]["counts"] == both
    assert [wait["limit"] for wait in found["processes"][0]["waits"]] == [60.0, None], "the longest first"
    assert f"state     running: process {os.getpid()} on " in text
    assert re.search(r"step      12 of 80, logged \d+ s ago", text)
    assert "  controller (pid " in text and "): waits: 1 engine, 1 tool\n" in text
    assert "tool       uid 3, sample 1               tool search: execute  (limit 60 s)\n" in text
    assert "engine     uid 4" in text and "(no limit)\n" in text
    assert "checkpoint  step=12" in text


def test_other_processes_are_shown_and_those_of_an_earlier_run_are_not(run, capsys):
    old = Path(run.default_local_dir) / "status"
    old.mkdir(parents=True)
    facts = {"pid": 1, "host": "h", "late": 0, "counts": {}, "waits": [], "state": "running", "step": None}
    old_status = {"name": "gone-7", "time": time.time() - 100, "started": 0, **facts}
    (old / "gone-7.json").write_text(json.dumps(old_status))
    with begun(run) as (folder, tracker):
        tracker.start()
        worker = Watchdog(folder.path, "agents-0")
        worker.start()
        until(lambda: len(read_status(folder.path).processes) == 2)
        worker.stop()
    assert [process.name for process in read_status(folder.path).processes] == ["controller", "agents-0"]


@pytest.mark.parametrize(
    ("error", "said"),
    [(None, "done, "), (ValueError, "ended with an error, "), (KeyboardInterrupt, "stopped by the user, ")],
)
def test_run_that_ended(run, capsys, error, said):
    folder = RunFolder(run.default_local_dir)
    with suppress(ValueError, KeyboardInterrupt), folder:
        with Tracker(run, folder, total_steps=80) as tracker:
            tracker.log({"reward/mean": 0.5}, 80)
            if error is not None:
                raise error
        assert read_status(folder.path).state == "done", "while it still holds the folder"
    assert main(["status", str(folder.path)]) == 0
    assert f"state     {said}" in (text := capsys.readouterr().out)
    assert ("processes, and their longest waits" in text) == (error is ValueError)


@pytest.mark.parametrize("earlier", [False, True])
def test_waits_of_a_starting_run_are_shown(run, capsys, earlier):
    """Models are loaded and processes started before the run begins to write its folder."""
    if earlier:
        of_another_process(finished(run))
    with begun(run) as (folder, tracker):
        with waiting("engine", "", "vLLM to start", 1800.0):
            until(lambda: any(process.counts for process in read_status(folder.path).processes))
            assert main(["status", str(folder.path)]) == 0
        assert f"process {os.getpid()} on " in (text := capsys.readouterr().out)
        assert "state     starting: " in text and "vLLM to start  (limit 1800 s)\n" in text
        tracker.start()
        status_of(folder.path, state="running")
        assert [process.name for process in read_status(folder.path).processes] == ["controller"]
    assert read_status(folder.path).state == "done"
    if earlier:
        assert read_status(folder.path / "previous-1").state == "done", "as it said itself"


def test_run_that_failed_before_it_began_leaves_its_error(run, capsys):
    finished(run)
    folder = RunFolder(run.default_local_dir)
    with pytest.raises(ValueError), Tracker(run, folder, total_steps=80):
        status_of(folder.path, state="starting")
        raise ValueError("no\x1b[2J room\nfor it")
    assert read_status(folder.path).held_by is None, "the next one can begin"
    early = folder.path / "status/controller.starting"
    assert not early.exists()
    early.write_text((folder.path / "status/controller.json").read_text())  # as of one that was killed
    assert main(["status", str(folder.path)]) == 0
    text = capsys.readouterr().out
    assert "state     ended with an error, " in text and "ValueError in start, 0 s ago: no\\x1b[2J room\n" in text
    assert f"all of it: {folder.path}/error.json" in text
    finished(run)
    assert read_status(folder.path).state == "done" and not (folder.path / "error.json").exists()
    assert (folder.path / "previous-1/error.json").exists()


def test_error_of_a_run_names_step_and_phase_and_resuming_removes_it(run):
    with pytest.raises(RewardError), begun(run) as (folder, tracker):
        tracker.log({"critic/score/mean": 0.5}, 7)
        try:
            with timed({}, "step"), timed({}, "reward"):
                raise ValueError("the cause")
        except ValueError as error:
            raise RewardError("all 8 samples failed") from error
    error = json.loads((folder.path / "error.json").read_text())
    assert {name: error[name] for name in ("type", "message", "step", "steps", "phase")} == {
        "type": "RewardError", "message": "all 8 samples failed", "step": 7, "steps": 80, "phase": "reward",
    }  # fmt: skip
    assert "ValueError: the cause" in error["traceback"] and error["time"] <= time.time()
    assert read_status(folder.path).error == error
    with begun(run) as (_, tracker):
        tracker.resume(7)
        assert read_status(folder.path).error is None


def test_runs_below_a_folder_are_listed_the_newest_first(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["status"]) == 2 and "outputs: there is no such folder" in capsys.readouterr().err
    monkeypatch.setattr("burnish.tracking.run_status.RunStatus.age_s", property(lambda one: 10.0 - (one.step or 0)))
    for name, step in (("a", 3), ("sweep/b", 7)):
        run.default_local_dir = f"outputs/project/{name}"
        with suppress(ValueError), begun(run) as (_, tracker):
            tracker.log({"reward/mean": step / 10}, step)
            if name == "a":
                raise ValueError
    finished(run)  # moves b to previous-1, which is no run
    assert main(["status"]) == 0
    assert [line.split("  ") for line in re.sub("  +", "  ", capsys.readouterr().out).splitlines()] == [
        ["run", "state", "step", "last heard of", "findings", "last values"],
        ["outputs/project/sweep/b", "done", "80/80", "0 s ago", "-", "reward 0.500"],
        ["outputs/project/a", "failed", "3/80", "7 s ago", "-", "reward 0.300"],
    ]
    assert main(["status", "outputs/project", "--json"]) == 0
    assert [one["metric"] for one in json.loads(capsys.readouterr().out)] == ["reward 0.500", "reward 0.300"]


@pytest.mark.parametrize("has_status", [True, False])
def test_run_that_was_killed_in_its_first_seconds_is_dead(tmp_path, capsys, monkeypatch, has_status):
    monkeypatch.setattr("burnish.tracking.run_status.SILENT_S", 0.0)
    folder = tmp_path / "run"
    program = KILLED.replace("    tracker.start()\n", "")
    command, root = [sys.executable, "-c", program, str(folder)], Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as process:
        assert process.stdout.readline() == b"begun\n"
        until((folder / "status/controller.starting").exists)
        process.kill()
    if not has_status:
        (folder / "status/controller.starting").unlink()
    assert main(["status", str(folder)]) == 0
    assert "state     ended without a last report, " in (text := capsys.readouterr().out)
    assert "There is no checkpoint yet: the same command starts from scratch" in text


def test_folder_held_by_another_run_is_left_alone(run):
    with begun(run):
        status_of(run.default_local_dir, state="starting")
        with pytest.raises(ConfigError, match="is writing there"), begun(run) as (_, second):
            second.start()
        status_of(run.default_local_dir, state="starting")


def test_run_that_begins_in_the_folder_of_another(run):
    of_another_process(folder := finished(run))
    again = RunFolder(folder.path)
    again.append()
    assert read_status(folder.path).state == "starting"
    again.close()
    assert read_status(folder.path).state == "done"


KILLED = """
import os, sys
from burnish.config.trainer import TrainerConfig
from burnish.tracking import RunFolder, Tracker
trainer = TrainerConfig(default_local_dir=sys.argv[1], logger=["jsonl"])
trainer.project_name = trainer.experiment_name = "x"
with RunFolder(sys.argv[1]) as folder, Tracker(trainer, folder) as tracker:
    tracker.start()
    print("begun", flush=True)
    sys.stdin.read()
"""


def test_stopped_and_killed_runs_are_recognised(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("burnish.tracking.run_status.SILENT_S", 3600.0)
    folder = tmp_path / "run"
    command, root = [sys.executable, "-c", KILLED, str(folder)], Path(__file__).parents[2]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root)
    try:
        assert process.stdout.readline() == b"begun\n"
        status_of(folder, state="running")
        os.kill(process.pid, 19)  # SIGSTOP
        monkeypatch.setattr("burnish.tracking.run_status.SILENT_S", 0.0)
        status_of(folder, state="silent")
        main(["status", str(folder)])
        assert f"process {process.pid} on " in (text := capsys.readouterr().out)
        assert "holds the folder but reports nothing" in text and ", silent for " in text
    finally:
        process.kill()
        process.wait()
    status_of(folder, state="dead")
    main(["status", str(folder)])
    assert "state     ended without a last report, " in (text := capsys.readouterr().out)
    assert "no checkpoint yet: the same command starts from scratch" in text
    (folder / "global_step_1").mkdir()
    main(["status", str(folder)])
    assert "The same command resumes from the newest checkpoint\n" in capsys.readouterr().out


def test_torn_files_and_a_broken_last_line_of_the_metrics_are_skipped(tmp_path, capsys):
    (tmp_path / "status").mkdir()
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "metrics.jsonl").write_text('{"step": 12, "a": 2}\ngarbage{\n{"st')
    (tmp_path / "status/controller.json").write_text("{")
    (tmp_path / "status/other.json").write_text("[]")
    assert main(["status", str(tmp_path)]) == 0
    assert "step      12, logged " in (text := capsys.readouterr().out) and "none is known" in text


def test_newest_dump_is_named_and_names_cannot_control_the_terminal(run, capsys):
    with begun(run) as (folder, tracker):
        tracker.start()
        with waiting("tool", "uid 3", "tool search: execute", 60.0) as wait:
            wait.overdue(until_written=True)
        tracker.log({"reward/mean": 0.5}, 1)
        until(lambda: read_status(folder.path).processes[0].late)
        main(["status", str(folder.path)])
    text = capsys.readouterr().out
    assert f"stacks    {wait.stacks}, " in text and "late_wait  wait=tool, owner=uid 3, " in text
    assert ", 1 late so far): " in text
    assert json.loads((folder.path / "metrics.jsonl").read_text())["failures/late_waits"] == 1
    with begun(run) as (folder, tracker):
        tracker.start()
        with waiting("tool", "\x1b[2Juid", "tool \x1b]0;x\x07\nevil", 60.0):
            until(lambda: any(process.counts for process in read_status(folder.path).processes))
            main(["status", str(folder.path)])
    assert "\x1b" not in (text := capsys.readouterr().out) and "tool \\x1b]0;x\\x07\\nevil" in text


@pytest.mark.parametrize("make", [False, True])
def test_folder_without_a_run(tmp_path, capsys, make):
    if make:
        (tmp_path / "x").mkdir()
    assert main(["status", str(tmp_path / "x")]) == 2
    said = "it holds no run" if make else "there is no such folder"
    assert f"x: {said}. Name the folder that trainer.default_local_dir names" in capsys.readouterr().err


STATUS_OF_A_BATCH = (
    '{{"name": "agents-0", "pid": 1, "host": "x", "time": 1, "started": 1, "state": "running", "late": 0, '
    '"counts": {{}}, "waits": [], "batches": [["generating", 1, 2, 3.0, {}, 5.0]]}}'
)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("status/x.json", '{"name": "x"}'),
        ("status/controller.json", '{"name": "controller", "time": "now", "waits": 3}'),
        ("status/agents-0.json", STATUS_OF_A_BATCH.format("1e999")),
        ("status/agents-0.json", STATUS_OF_A_BATCH.format('"soon"')),
        ("metrics.jsonl", '{"a": 1}\n'),
        ("metrics.jsonl", '{"step": "many"}\n'),
        ("error.json", '{"type": "E", "message": 3, "phase": "", "time": 1}'),
        ("error.json", "[" * 99999),
        ("events.jsonl", '[1]\n{"kind": "x", "time": "then"}\n{"kind": 3, "time": 1e300}\n{}\n'),
        ("events.jsonl", "\n\n"),
    ],
)
def test_files_of_other_programs_are_skipped(tmp_path, capsys, file, text):
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert main(["status", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "state     unknown: no process of it has left a status here\n" in text and "none is logged yet" in text


def test_only_the_end_of_a_long_file_is_read(tmp_path):
    (tmp_path / "config.yaml").write_text("")
    with (tmp_path / "events.jsonl").open("w") as file:
        for i in range(30):
            file.write(json.dumps({"kind": "x", "time": i, "text": "y" * 20_000}) + "\n")
        file.write('{"kind": "torn')
    with (tmp_path / "metrics.jsonl").open("w") as file:
        file.write("no JSON at all\n" * 10_000 + '{"step": 80}\n')
    status = read_status(tmp_path)
    assert [event["time"] for event in status.events] == [25, 26, 27, 28, 29] and status.step == 80
