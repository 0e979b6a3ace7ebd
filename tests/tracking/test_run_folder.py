"""RunFolder: what lands where, in the background, and what happens when the disk says no or takes too long."""

import errno
import json
import math
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pytest
import yaml

from burnish.config import PPOConfig
from burnish.config.key import write
from burnish.errors import CheckpointError, ConfigError, DeadlineError
from burnish.tracking import Tracker, run_folder
from burnish.tracking.background import Background
from burnish.tracking.disk import disk_problem, json_line, write_atomically
from burnish.tracking.jsonl import read_lines
from burnish.tracking.run_folder import RunFolder
from burnish.waits import longest
from tests.processes import until


@dataclass
class Inner:
    files: list[str] = field(default_factory=lambda: ["a.parquet"])


@dataclass
class Outer:
    data: Inner = field(default_factory=Inner)
    seed: int | None = None


LEFT = (
    "config.yaml",
    "recipe.yaml",
    "metrics.jsonl",
    "events.jsonl",
    "global_step_3/model",
    "rollouts/3.jsonl",
    ".global_step_4.replaced/model",
    ".latest_checkpointed_iteration.txt.writing",
)


def fill(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("earlier: 1")


@pytest.fixture
def used(tmp_path, monkeypatch):
    """A run folder `run` with what an earlier run left, a checkpoint that is a link to `store`, and other files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    run = tmp_path / "run"
    fill(run, *LEFT, "data/train.parquet")
    fill(tmp_path, "store/model")
    (run / "global_step_4").symlink_to(tmp_path / "store")
    (tmp_path / "link").symlink_to(run)
    return RunFolder("run")


MODEL, TRAIN = "actor_rollout_ref.model.path", "data.train_files"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (MODEL, "run/global_step_3"), (MODEL, "run/global_step_3/model"), (MODEL, "run"),
        (MODEL, "~/run/global_step_3"), (MODEL, "run/data/../global_step_3"), (MODEL, "link/global_step_3"),
        (MODEL, "run/global_step_4"), ("critic.model.path", "run/global_step_3"), (TRAIN, "run/rollouts/3.jsonl"),
        (TRAIN, ["train.parquet", "run/rollouts/3.jsonl"]),
    ],
)  # fmt: skip
def test_files_that_a_new_run_moves_aside_cannot_be_its_input(used, key, value):
    config = PPOConfig()
    write(config, key, value)
    with pytest.raises(ConfigError, match=rf"{key}=\S+ was left by an earlier run in run: .*experiment_name="):
        used.check_inputs_stay(config)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (MODEL, "Qwen/Qwen2.5-0.5B"), (MODEL, "store"), (MODEL, "runner/global_step_3"),
        (TRAIN, "run/data/train.parquet"), (TRAIN, ["train.parquet"]), ("trainer.rollout_data_dir", "run/rollouts"),
    ],
)  # fmt: skip
def test_files_that_a_new_run_leaves_may_be_its_input(used, key, value):
    config = PPOConfig()
    write(config, key, value)
    used.check_inputs_stay(config)
    config = PPOConfig()
    write(config, MODEL, "new")
    RunFolder("new").check_inputs_stay(config)  # everything in a new folder may be input


def test_new_run_moves_all_of_the_earlier_one_aside_its_configuration_too(tmp_path, caplog):
    fill(tmp_path, *LEFT)
    folder = RunFolder(tmp_path)
    folder.write_config(Outer(seed=2))
    folder.write_recipe({"seed": 2})
    folder.begin()
    assert all((tmp_path / "previous-1" / name).read_text() == "earlier: 1" for name in LEFT)
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {"previous-1", "config.yaml", "recipe.yaml", ".lock"}
    assert yaml.safe_load((tmp_path / "recipe.yaml").read_text()) == {"seed": 2} and "previous-1" in caplog.text
    folder.close()
    with RunFolder(tmp_path) as third:
        third.write_rollouts(1, [{"run": 3}])  # samples come before the metrics of their step
    assert read_lines(tmp_path / "rollouts" / "1.jsonl") == [{"run": 3}] and (tmp_path / "previous-2").exists()
    new = tmp_path / "new"
    folder = RunFolder(new)
    folder.write_config(Outer())
    folder.begin()
    folder.write_recipe({"data.files": ["a.parquet"], "model.override": {"a": 1}, "seed": None})
    assert yaml.safe_load((new / "config.yaml").read_text()) == {"data": {"files": ["a.parquet"]}, "seed": None}
    assert yaml.safe_load((new / "recipe.yaml").read_text()) == {
        "data": {"files": ["a.parquet"]},
        "model": {"override": {"a": 1}},
        "seed": None,
    }


def test_events_and_status_of_two_runs_do_not_mix(trainer, tmp_path):
    for seed in (1, 2):
        with RunFolder.of(trainer) as folder, Tracker(trainer, folder) as tracker:
            tracker.start()
            tracker.event("seen", seed=seed)
    assert [event["seed"] for event in read_lines(folder.path / "events.jsonl")] == [2]
    assert [event["seed"] for event in read_lines(folder.path / "previous-1" / "events.jsonl")] == [1]
    told = ("status/controller.json", "stacks/1_controller.txt")
    fill(tmp_path, *told)
    RunFolder(tmp_path).begin()
    assert all((tmp_path / name).exists() for name in told), "those of this run may be there before it begins"
    fill(tmp_path, "metrics.jsonl")
    (tmp_path / ".lock").unlink()
    RunFolder(tmp_path).begin()
    assert all((tmp_path / "previous-1" / name).exists() for name in told)


def test_resumed_run_has_the_keys_of_the_last_command_and_one_that_appends_those_that_are_there(tmp_path):
    fill(tmp_path, *LEFT, "rollouts/2.jsonl", "rollouts/notes.jsonl", "validation/5.jsonl")
    with RunFolder(tmp_path) as folder:
        folder.write_recipe({"seed": 2})
        folder.resume(2)
    assert yaml.safe_load((tmp_path / "recipe.yaml").read_text()) == {"seed": 2}
    assert (tmp_path / "global_step_3").exists() and not list((tmp_path / "validation").iterdir())
    assert sorted(path.name for path in (tmp_path / "rollouts").iterdir()) == ["2.jsonl", "notes.jsonl"]
    (tmp_path / "config.yaml").unlink()
    folder = RunFolder(tmp_path)
    folder.write_recipe({"seed": 3})
    folder.write_config(Outer())
    folder.append()
    assert yaml.safe_load((tmp_path / "recipe.yaml").read_text()) == {"seed": 2} and (tmp_path / "config.yaml").exists()


@pytest.mark.parametrize("way", ["begin", "resume"])
def test_samples_go_where_the_keys_say_and_folders_that_runs_may_share_are_left_alone(trainer, tmp_path, way):
    trainer.rollout_data_dir, trainer.validation_data_dir = str(tmp_path / "r"), str(tmp_path / "v")
    fill(tmp_path, "r/1.jsonl", "r/7.jsonl", "v/7.jsonl")
    with RunFolder.of(trainer) as folder:
        folder.begin() if way == "begin" else folder.resume(3)
        folder.write_rollouts(2, [{}])
        folder.write_validation(2, [{}])
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == ["1.jsonl", "2.jsonl", "7.jsonl"]
    assert sorted(path.name for path in (tmp_path / "v").iterdir()) == ["2.jsonl", "7.jsonl"]
    assert not (folder.path / "rollouts").exists()


def test_samples_keep_their_values(tmp_path):
    import torch

    rows = [{"response": "½ + ½\u2028= 1\ud83d", "mask": torch.tensor([1, 0]), "score": np.float32(0.5), "uid": 7}]
    with RunFolder(tmp_path) as folder:
        folder.write_rollouts(12, rows)
        folder.write_validation(10, [{"a": 1}, {"a": 2}])
    assert read_lines(tmp_path / "rollouts" / "12.jsonl") == [
        {"response": "½ + ½\u2028= 1\ud83d", "mask": [1, 0], "score": 0.5, "uid": 7}
    ]
    assert read_lines(tmp_path / "validation" / "10.jsonl") == [{"a": 1}, {"a": 2}]


def test_folder_that_cannot_be_made_is_a_config_error_with_the_key(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RunFolder("~/run").path == tmp_path / "run"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"trainer\.default_local_dir=.*file/run: .*is a file, not a folder"):
        RunFolder(tmp_path / "file" / "run")
    with pytest.raises(ConfigError, match=r"trainer\.rollout_data_dir=.*file: .*with trainer\.rollout_data_dir"):
        RunFolder(tmp_path / "run", rollouts=tmp_path / "file")


@pytest.mark.parametrize(
    ("code", "words"), [(errno.EROFS, "read-only"), (errno.EACCES, "no permission"), (errno.ENOSPC, "disk is full")]
)
def test_folder_that_cannot_be_written_is_a_config_error_with_the_fix(tmp_path, monkeypatch, code, words):
    def refuse(self, text):
        raise OSError(code, "no")

    monkeypatch.setattr(run_folder.Path, "write_text", refuse)
    with pytest.raises(ConfigError, match=rf"cannot write there: .*{words}.*trainer\.default_local_dir"):
        RunFolder(tmp_path)


def test_failed_write_is_raised_once_by_the_next_call_or_the_end_of_the_run(tmp_path, caplog):
    with pytest.raises(CheckpointError, match="validation"), RunFolder(tmp_path) as folder:
        folder.begin()
        (tmp_path / "rollouts").write_text("in the way")
        (tmp_path / "validation").write_text("in the way")
        folder.write_rollouts(1, [{}])
        with pytest.raises(CheckpointError, match=r"rollouts/1\.jsonl: .*is a file, not a folder"):
            folder.flush()
        (tmp_path / "rollouts").unlink()
        folder.write_rollouts(2, [{}])
        folder.flush()
        assert (tmp_path / "rollouts" / "2.jsonl").exists()
        folder.write_validation(1, [{}])
    with pytest.raises(ValueError, match="the run"), RunFolder(tmp_path / "other") as folder:
        folder.begin()
        (tmp_path / "other" / "rollouts").write_text("in the way")
        folder.write_rollouts(1, [{}])
        raise ValueError("the run")  # comes first
    assert "rollouts/1.jsonl" in caplog.text


def test_broken_row_names_its_file(tmp_path):
    class Broken:
        def tolist(self):
            raise ValueError("broken row")

    folder = RunFolder(tmp_path)
    folder.write_rollouts(1, [{"a": Broken()}])
    with pytest.raises(ValueError, match="broken row") as caught:
        folder.flush()
    assert "rollouts/1.jsonl" in "".join(caught.value.__notes__)
    folder.close()
    assert not (tmp_path / "rollouts" / "1.jsonl").exists(), "half a file"


def test_problem_names_the_key_of_the_place_and_lines_always_parse():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert disk_problem(full).endswith("name a place on another disk with trainer.default_local_dir")
    assert disk_problem(full, "--json").endswith("name a place on another disk with --json")
    assert disk_problem(OSError(errno.EIO, "Input/output error"), "data.output_path") == (
        "Input/output error: name another place with data.output_path"
    )
    large = sys.float_info.max
    values = {"finite": [1.5, -0.25], "whole": (1, 10**400), "not": [1.5, math.inf, math.nan], "large": [large, large]}
    sets = {"mixed": [1, 2.5, True, None, "a"], "arrays": [np.float32(0.5), np.arange(2)], "none": []}
    read = json.loads(json_line(values | sets))
    assert read["finite"] == [1.5, -0.25] and read["whole"] == [1, 10**400] and read["large"] == [large, large]
    assert read["not"] == [1.5, "inf", "nan"]
    assert read["mixed"] == [1, 2.5, True, None, "a"] and read["arrays"] == [0.5, [0, 1]] and read["none"] == []


def test_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "figures.json"
    write_atomically(path, ["old"])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"figures\.json: the disk is full.*with data\.output_path"):
        write_atomically(path, ["new"], "data.output_path")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["figures.json"]


def background(deadline=60.0, **settings):
    return Background[int]("here", "checkpoint", deadline, hint="Buy a disk", owner="the trainer", **settings)


def test_the_outcome_comes_once_after_all_jobs_in_order():
    jobs, go, done = background(depth=2), threading.Event(), []
    assert jobs.outcome(wait=True) is None
    jobs.start(lambda: 3 if go.wait(60) else 0, "counting")
    assert jobs.outcome(wait=False) is None, "it runs"
    go.set()
    assert until(lambda: jobs.outcome(wait=False)) == 3 and jobs.outcome(wait=True) is None
    for k in range(20):
        jobs.start(lambda k=k: done.append(k), str(k))
    jobs.outcome(wait=True)
    assert done == list(range(20))


@pytest.mark.parametrize("error", [CheckpointError("full"), ValueError("a bug"), KeyboardInterrupt()])
@pytest.mark.parametrize("wait", [True, False])
def test_a_failure_is_raised_as_it_was_and_once(error, wait):
    jobs = background()

    def fail():
        raise error

    jobs.start(fail, "failing")
    with pytest.raises(type(error)) as raised:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            jobs.outcome(wait=wait)
            time.sleep(0.001)
    assert raised.value is error
    assert jobs.outcome(wait=True) is None


def test_ctrl_c_ends_the_wait_and_not_the_job():
    jobs, go = background(), threading.Event()
    jobs.start(lambda: 3 if go.wait(120) else 0, "writing checkpoint run/global_step_3")
    main = threading.main_thread().ident

    def interrupt():
        while not any(wait.owner == "the trainer" for wait in longest()):  # in `outcome`, and nowhere else
            time.sleep(0.01)
        time.sleep(0.2)  # until it blocks
        signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            threading.Thread(target=interrupt, daemon=True).start()
            jobs.outcome(wait=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not go.is_set()
    go.set()
    assert jobs.outcome(wait=True) == 3


def test_a_job_that_hangs_is_named_and_given_up_and_a_full_queue_is_an_error():
    jobs, go = background(deadline=0.05), threading.Event()
    jobs.start(lambda: 3 if go.wait(60) else 0, "writing checkpoint run/global_step_3")
    thread = jobs._jobs.thread
    words = r"writing checkpoint run/global_step_3 has not ended within 0\.05 s.*Buy a disk"
    with pytest.raises(DeadlineError, match=words):
        jobs.outcome(wait=True)
    assert jobs.outcome(wait=True) is None, "nobody waits twice for what hangs"
    go.set()
    thread.join(30)
    assert not longest()
    jobs, go = background(deadline=0.05), threading.Event()
    thread = None
    with pytest.raises(DeadlineError, match=r"job \d has not ended within 0\.05 s"):
        for k in range(4):
            jobs.start(lambda: 3 if go.wait(60) else 0, f"job {k}")
            thread = jobs._jobs.thread
    go.set()
    assert thread is not None
    thread.join(30)  # else its late wait is counted in a later test
    assert not longest()
