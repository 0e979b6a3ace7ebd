"""tensorboard for real; wandb and mlflow against stand-ins that record the calls."""

import importlib.machinery
import sys
from types import ModuleType, SimpleNamespace

import pytest

from burnish.tracking.tracker import Tracker


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
    stand_in(monkeypatch, "wandb", init=lambda **kw: runs.append(WandbRun(**kw)) or runs[-1])
    trainer.logger = ["wandb"]
    with Tracker(trainer, folder, config={"data": {"seed": 1}}) as tracker:
        tracker.log({"a": 1.0}, 1)
    assert runs[0].arguments["project"] == "project" and runs[0].arguments["name"] == "experiment"
    assert runs[0].arguments["config"] == {"data": {"seed": 1}} and runs[0].arguments["id"] is None
    assert runs[0].logged == [{"a": 1.0, "step": 1}] and runs[0].finished == 0

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
