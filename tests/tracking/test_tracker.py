"""Tracker: the loggers, metrics.jsonl, resuming, events; tensorboard for real, wandb and mlflow against stand-ins."""

import importlib.machinery
import json
import math
import os
import re
import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from burnish.errors import CheckpointError, ConfigError, install_command
from burnish.tracking.jsonl import JsonlBackend, read_lines, read_metrics
from burnish.tracking.mlflow import allowed
from burnish.tracking.run_folder import RunFolder
from burnish.tracking.tracker import BACKENDS, Tracker, check_loggers
from burnish.waits import longest


def run(trainer, folder, steps, resume=None):
    with Tracker(trainer, folder) as tracker:
        if resume is not None:
            tracker.resume(resume)
        for step in steps:
            tracker.log({"critic/score/mean": step / 10}, step)


def test_metrics_are_on_disk_at_once_whatever_the_loggers_are(trainer, folder):
    trainer.logger = []
    with Tracker(trainer, folder) as tracker:
        for step in (1, 2):
            tracker.log({"a": step / 10}, step)
            assert read_metrics(folder.path) == [{"step": k, "a": k / 10} for k in range(1, step + 1)]
        with pytest.raises(TypeError, match=r"metric reward/mean: a number .*'high'"):
            tracker.log({"reward/mean": "high"}, 1)
        with pytest.raises(RuntimeError, match="after the first log"):
            tracker.resume(1)


def test_numpy_numbers_and_numbers_that_are_not_finite_survive(trainer, folder):
    with Tracker(trainer, folder) as tracker:
        tracker.log({"a": np.float32(0.5), "b": float("nan"), "c": -math.inf, "d": np.int64(3)}, 1)
    line = json.loads((folder.path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert line == {"step": 1, "a": 0.5, "b": "nan", "c": "-inf", "d": 3}
    (record,) = read_metrics(folder.path)
    assert math.isnan(record["b"]) and record["c"] == -math.inf


def test_resuming_equals_never_having_been_killed(trainer, folder, tmp_path):
    run(trainer, folder, range(1, 8))
    path = folder.path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 8, "critic/sc')  # killed while writing
    run(trainer, folder, range(5, 10), resume=4)

    with RunFolder(tmp_path / "whole") as whole:
        run(trainer, whole, range(1, 10))
    assert path.read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_a_run_resumes_whatever_a_full_disk_or_another_program_left(trainer, folder, caplog):
    run(trainer, folder, range(1, 4))
    path = folder.path / "metrics.jsonl"
    whole = path.read_bytes()
    foreign = ["a note", "[1]", '{"step": "two"}', '{"step": 1e999}', '{"step": 2, "a": [1]}', '{"a": 1}', "[" * 10**5]
    torn = '{"step": 4, "val/好/mean": 1}'.encode()[:18]  # inside a character
    path.write_bytes(b"".join([whole, *(line.encode() + b"\n" for line in foreign), b"\xff\xfe\n", torn]))
    assert [line["step"] for line in read_metrics(folder.path)] == [1, 2, 3]
    with Tracker(trainer, folder) as tracker:
        tracker.resume(3)
    assert path.read_bytes() == whole
    assert caplog.text.count("left out") == 2 * (len(foreign) + 1) and f"{path}: line 4 is no JSON" in caplog.text


def test_events_carry_their_facts_are_flushed_and_continue_after_a_torn_line(trainer, folder):
    (folder.path / "events.jsonl").write_text('{"kind": "start"}\n{"kind": "wa')
    with Tracker(trainer, folder) as tracker:
        tracker.append()
        tracker.event("reward_failure", step=3, reason="timeout\u2028after 5 s")
        first, event = read_lines(folder.path / "events.jsonl")
    assert first == {"kind": "start"} and event.pop("time") > 0
    assert event == {"kind": "reward_failure", "step": 3, "reason": "timeout\u2028after 5 s"}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_is_named_with_the_fix(trainer, folder):
    (folder.path / "metrics.jsonl").symlink_to("/dev/full")
    tracker = Tracker(trainer, folder)
    folder.resume(0)  # go on with the file that is there
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: the disk is full: .*trainer\.default_local_dir"):
        tracker.log({"a": 1.0}, 1)


def test_unknown_logger_and_missing_package_are_found_before_training(trainer, folder, monkeypatch):
    trainer.logger = ["tensorbord"]
    with pytest.raises(ConfigError, match=r"trainer\.logger=tensorbord: .*Did you mean tensorboard\?.*console, jsonl"):
        Tracker(trainer, folder)
    monkeypatch.setattr("burnish.tracking.tracker.importlib.util.find_spec", lambda package: None)
    for name in ("wandb", "mlflow", "trackio"):
        trainer.logger = [name]
        with pytest.raises(ConfigError, match=rf"trainer\.logger={name}: .*{re.escape(install_command(name))}"):
            Tracker(trainer, folder)


def test_folder_named_like_a_package_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "a_logger").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BACKENDS, "a_logger", ("a.module:Backend", "a_logger"))
    with pytest.raises(ConfigError, match="not installed"):
        check_loggers(["a_logger"])


def test_all_loggers_close_when_one_fails_and_the_error_of_the_run_comes_first(trainer, folder, monkeypatch, caplog):
    tracker = Tracker(trainer, folder)
    closed = []

    class Bad(type(tracker._backends[0])):
        def close(self, failed=False):
            closed.append(failed)
            raise OSError("gone")

    tracker._backends.insert(0, Bad(tracker._backends[0].facts))
    tracker.log({"a": 1}, 1)
    with pytest.raises(OSError, match="gone"):
        tracker.close()
    assert closed == [False]
    assert tracker._backends[1]._lines._file is None
    with pytest.raises(ValueError, match="the run"), Tracker(trainer, folder) as tracker:
        monkeypatch.setattr(tracker, "close", lambda failed: (_ for _ in ()).throw(OSError("closing")))
        raise ValueError("the run")
    assert "closing" in caplog.text


def test_events_from_before_the_run_began_are_its_own(trainer, folder):
    """An earlier run's files are there until then, and are moved aside."""
    run(trainer, folder, [1])
    again = RunFolder.of(trainer)
    (folder.path / "events.jsonl").write_text('{"kind": "old"}\n')
    folder.close()
    with again, Tracker(trainer, again) as tracker:
        tracker.event("before")
        assert (folder.path / "events.jsonl").read_text() == '{"kind": "old"}\n'
        tracker.start()
        tracker.event("after")
    assert [line["kind"] for line in read_lines(folder.path / "events.jsonl")] == ["before", "after"]
    assert (folder.path / "previous-1/events.jsonl").read_text() == '{"kind": "old"}\n'


def test_waits_for_loggers_are_registered_and_watched_until_they_are_closed(trainer, folder, monkeypatch):
    seen = []

    class Slow(JsonlBackend):
        def log(self, metrics, step):
            seen.extend((wait.kind, wait.owner, wait.subject, wait.seconds) for wait in longest())

    with Tracker(trainer, folder) as tracker:
        tracker._backends = [Slow(tracker._backends[0].facts)]
        tracker.log({"a": 1.0}, 3)
    assert seen == [("logger", "the tracker", "Slow to take step 3", 600.0)]
    seen = []

    def close(self, failed=False):
        seen.extend((wait.kind, wait.subject) for wait in longest())
        seen.append([thread.name for thread in threading.enumerate() if thread.name == "watchdog"])

    monkeypatch.setattr("burnish.tracking.jsonl.JsonlBackend.close", close)
    run(trainer, folder, [1])
    assert ("logger", "JsonlBackend to close") in seen and "watchdog" in seen[-1]


def stand_in(monkeypatch, name, **members):
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, origin="stand-in")
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


def test_tensorboard_holds_the_scalars_and_a_resumed_run_replaces_lost_steps(trainer, folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer.logger = ["tensorboard"]
    with Tracker(trainer, folder) as tracker:
        for step in (1, 2, 3):
            tracker.log({"reward/mean": float(step)}, step)
    with Tracker(trainer, folder) as tracker:
        tracker.resume(1)
        tracker.log({"reward/mean": 20.0}, 2)
    events = EventAccumulator(str(folder.path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward/mean")] == [(1, 1.0), (2, 20.0)]


SAMPLE = {"prompt": "1+1=?", "response": "**2**\n<b>\x1b[2J</b>", "ground_truth": "2", "score": 1.0, "uid": 0}


def test_tensorboard_shows_a_few_samples_as_plain_text(trainer, folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer.logger = ["tensorboard"]
    with Tracker(trainer, folder) as tracker:
        tracker.write_rollouts(1, [SAMPLE] * 5)
        tracker.log({"reward/mean": 1.0}, 1)
    events = EventAccumulator(str(folder.path / "tensorboard")).Reload()
    tags = events.Tags()["tensors"]
    assert tags == [f"samples/{number}/text_summary" for number in range(3)]
    (text,) = events.Tensors(tags[0])[0].tensor_proto.string_val
    assert b"response\n\n    **2**\n    <b>\\x1b[2J</b>\n" in text
    assert len(read_lines(folder.path / "rollouts/1.jsonl")) == 5


WANDB = {
    "Table": lambda columns, data: (columns, data),
    "setup": lambda: SimpleNamespace(settings=SimpleNamespace(mode=os.environ.get("WANDB_MODE", "online"))),
    "login": lambda prompt, verify: True,
}


class WandbRun:
    def __init__(self, **arguments):
        self.arguments, self.logged, self.finished = arguments, [], None
        self.id = arguments["id"] or "fresh"

    def log(self, record):
        self.logged.append(record)

    def define_metric(self, name, step_metric=None): ...

    def finish(self, exit_code):
        self.finished = exit_code


def test_wandb_gets_names_config_and_steps_and_is_continued(trainer, folder, monkeypatch):
    runs = []
    stand_in(monkeypatch, "wandb", **WANDB, init=lambda **kw: runs.append(WandbRun(**kw)) or runs[-1])
    trainer.logger = ["wandb"]
    with Tracker(trainer, folder, config={"data": {"seed": 1}}) as tracker:
        tracker.log({"a": 1.0}, 1)
        tracker.write_rollouts(2, [SAMPLE])
    assert runs[0].arguments["project"] == "project" and runs[0].arguments["name"] == "experiment"
    assert runs[0].arguments["config"] == {"data": {"seed": 1}} and runs[0].arguments["id"] is None
    shown, texts = runs[0].logged[1]["samples"], ["1+1=?", "**2**\n<b>\\x1b[2J</b>", "2", "1.0"]
    assert shown == (["prompt", "response", "ground_truth", "score"], [texts]) and runs[0].logged[1]["step"] == 2
    assert runs[0].logged[0] == {"a": 1.0, "step": 1} and runs[0].finished == 0

    with pytest.raises(ValueError), Tracker(trainer, folder) as tracker:
        tracker.resume(1)
        tracker.log({"a": 2.0}, 2)
        raise ValueError
    assert runs[1].arguments["id"] == "fresh" and runs[1].arguments["resume"] == "allow"
    assert runs[1].finished == 1


def test_mlflow_gets_names_it_allows(trainer, folder, monkeypatch):
    calls = []
    stand_in(
        monkeypatch,
        "mlflow",
        get_experiment_by_name=lambda name: None,
        set_experiment=lambda name: calls.append(("experiment", name)),
        start_run=lambda run_id, run_name: (
            calls.append(("start", run_id, run_name)) or SimpleNamespace(info=SimpleNamespace(run_id="abc"))
        ),
        log_dict=lambda content, name: calls.append(("dict", content, name)),
        log_metrics=lambda metrics, step: calls.append(("metrics", metrics, step)),
        end_run=lambda status: calls.append(("end", status)),
    )
    trainer.logger = ["mlflow"]
    with Tracker(trainer, folder, config={"seed": 1}) as tracker:
        tracker.log({"val-core/gsm8k/acc/mean@4": 0.5}, 3)
    with Tracker(trainer, folder, config={"seed": 1}) as tracker:
        tracker.resume(3)
        tracker.log({"a": 1.0}, 4)
    assert calls == [
        ("experiment", "project"),
        ("start", None, "experiment"),
        ("dict", {"seed": 1}, "config.yaml"),
        ("metrics", {"val-core/gsm8k/acc/mean_at_4": 0.5}, 3),
        ("end", "FINISHED"),
        ("experiment", "project"),
        ("start", "abc", "experiment"),
        ("metrics", {"a": 1.0}, 4),
        ("end", "FINISHED"),
    ]


def test_trackio_gets_names_config_and_steps_and_is_continued_by_its_name(trainer, folder, monkeypatch):
    calls = []

    def init(**given):
        calls.append(given)
        log, finish = lambda metrics, step: calls.append((metrics, step)), lambda: calls.append("finish")
        return SimpleNamespace(name="experiment-7", log=log, finish=finish)

    stand_in(monkeypatch, "trackio", init=init)
    trainer.logger = ["trackio"]
    for start in (0, 3):
        with Tracker(trainer, folder, config={"seed": 1}) as tracker:
            tracker.resume(start) if start else tracker.start()
            tracker.log({"a": 1.0}, start + 1)
    run = {"project": "project", "config": {"seed": 1}}
    first, second = run | {"name": "experiment", "resume": "never"}, run | {"name": "experiment-7", "resume": "allow"}
    assert calls == [first, ({"a": 1.0}, 1), "finish", second, ({"a": 1.0}, 4), "finish"]


class AuthenticationError(Exception):
    pass


def fails(error):
    def fail(*given, **named):
        raise error

    return fail


@pytest.mark.parametrize(
    ("name", "members", "said"),
    [
        ("wandb", {**WANDB, "login": lambda prompt, verify: False}, "there is no API key of wandb. Log in with `wandb"),
        (
            "wandb",
            {**WANDB, "login": fails(AuthenticationError("not\nvalid."))},
            "AuthenticationError: not valid. Log in",
        ),
        ("wandb", {}, "AttributeError: "),
        ("mlflow", {"get_experiment_by_name": fails(OSError("refused"))}, "OSError: refused. Name a tracking server"),
        ("trackio", {}, r"\w+: .*Log in with `hf auth login`, or unset TRACKIO_SPACE_ID"),
    ],
)
def test_a_logger_that_cannot_log_is_one_line_before_training(trainer, folder, monkeypatch, name, members, said):
    stand_in(monkeypatch, name, **members)
    monkeypatch.setenv("TRACKIO_SPACE_ID", "me/space")
    monkeypatch.setattr("huggingface_hub.whoami", fails(AuthenticationError("no token")))
    trainer.logger = [name]
    with pytest.raises(ConfigError, match=rf"^trainer\.logger={name}: {said}.* or use another logger") as caught:
        Tracker(trainer, folder)
    assert "\n" not in str(caught.value)


def test_wandb_offline_needs_no_login_and_mlflow_is_not_waited_for(trainer, folder, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    stand_in(monkeypatch, "wandb", **WANDB | {"login": fails(AuthenticationError())})
    seen = {}
    stand_in(monkeypatch, "mlflow", get_experiment_by_name=lambda name: seen.update(os.environ))
    trainer.logger = ["wandb", "mlflow"]
    Tracker(trainer, folder)
    assert seen["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1" and "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


@pytest.mark.hostile
def test_names_of_metrics_reach_every_logger_without_control_characters(trainer, folder, capsys):
    """As parts of a data source or of a reward function's keys; TensorBoard's files hold no half surrogate pair."""
    trainer.logger = ["console", "tensorboard"]
    with Tracker(trainer, folder) as tracker:
        tracker.log({"val-core/a\x1b[2J\ud800\n/acc/mean@2": 1.0}, 1)
    name = r"val-core/a\x1b[2J\ud800\n/acc/mean@2"
    assert read_metrics(folder.path) == [{"step": 1, name: 1.0}]
    assert capsys.readouterr().out == f"validation at step 1: {name} 1.0000\n"
    (events,) = (folder.path / "tensorboard").iterdir()
    assert name.encode() in events.read_bytes()


@pytest.mark.parametrize(
    ("name", "said"),
    [("a/b.c-d e_1", "a/b.c-d e_1"), ("mean@4", "mean_at_4"), ("/a//b:c\x1b/../é/", "_/a/_/b_c_/_/é/_")],
)
def test_names_as_mlflow_takes_them(name, said):
    assert allowed(name) == said
