"""Workers that die: the run resumes from its newest checkpoint, reports it, and gives up without progress."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from burnish.config.load import load_ppo
from burnish.controller.local import LocalWorkerGroup
from burnish.errors import DeadlineError, WorkerDied, WorkerError, WorkersLate
from burnish.trainer import restart, setup
from burnish.trainer.ppo import PPOTrainer
from tests.trainer.conftest import events

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=2", "trainer.val_before_train=false"]
LEFT: list[str] = []


class Ray(LocalWorkerGroup):
    """A worker in this process that counts as one of a cluster."""

    @classmethod
    def disconnect(cls) -> None:
        LEFT.append("cluster")


@pytest.fixture
def run(job, reward, monkeypatch):
    """`run(overrides, dies)` trains as `burnish ppo` does; `dies` is asked in every update whether the worker dies."""

    def train(*overrides, dies=lambda step: False, error=WorkerDied, at="describe", executor="ray"):
        loaded = load_ppo([*job, *GRPO, *overrides])
        setup.prepare(loaded)
        loaded.config.trainer.executor = executor
        original = getattr(PPOTrainer, at)

        def failing(self, *args, **kwargs):
            if dies(getattr(self, "step", 0)):
                raise error("rank 1 of 2 of pool 'global_pool' died: killed by signal 9")
            return original(self, *args, **kwargs)

        monkeypatch.setattr(PPOTrainer, at, failing)
        try:
            return setup.train(loaded.config, loaded.given)
        finally:
            monkeypatch.setattr(PPOTrainer, at, original)

    original_build = setup.build

    def build(config):
        """A trainer whose worker is in this process; only who builds it takes it for one of a cluster."""
        trainer = original_build(replace(config, trainer=replace(config.trainer, executor="local")))
        trainer.worker_group_cls = Ray
        return trainer

    LEFT.clear()
    monkeypatch.setattr(setup, "build", build)
    return train


def once(*steps):
    """Dies in each of these steps, the first time it gets there."""
    left = list(steps)

    return lambda step: bool(left) and step == left[0] and left.pop(0) == step


def test_run_resumes_from_its_newest_checkpoint_with_the_same_metrics(run, metrics_of, caplog):
    run("trainer.default_local_dir=whole", "trainer.save_freq=1")
    trainer = run("trainer.save_freq=1", dies=once(3))
    metrics = metrics_of("run")
    assert metrics[2].pop("failures/restarts") == 1 and trainer.step == 3 and metrics == metrics_of("whole")
    (event,) = events("restart")
    assert (event["attempt"], event["failed_step"], event["checkpoint"]) == (1, 3, 2) and "signal 9" in event["error"]
    assert "in step 3 of 3: rank 1 of 2" in caplog.text
    assert "restart 1 of 2: the run continues from run/global_step_2" in caplog.text
    assert LEFT == ["cluster"] * 3, "each attempt leaves its cluster"


def test_run_without_a_checkpoint_starts_again(run, metrics_of, caplog):
    run("trainer.default_local_dir=whole")
    run(dies=once(2))
    metrics = metrics_of("run")
    assert metrics[0].pop("failures/restarts") == 1 and metrics == metrics_of("whole")
    (event,) = events("restart")
    assert event["checkpoint"] is None and event["failed_step"] == 2
    assert "from where it started, for it saved nothing yet" in caplog.text
    assert Path("run/previous-1/metrics.jsonl").exists(), "what the failed attempt left"


def test_new_checkpoint_counts_as_progress(run):
    run("trainer.save_freq=1", "trainer.max_restarts=1", dies=once(2, 3))
    assert [event["attempt"] for event in events("restart")] == [1, 1]


def test_run_without_progress_gives_up_with_its_own_error(run):
    with pytest.raises(WorkerDied) as error:
        run("trainer.save_freq=1", dies=lambda step: step == 3)
    text = str(error.value)
    assert text.startswith("rank 1 of 2 of pool 'global_pool' died: killed by signal 9\nGiven up")
    for part in ("trainer.max_restarts=2 restarts", "run/logs", "continues from run/global_step_2"):
        assert part in text
    assert len(events("restart")) == 2
    with pytest.raises(WorkerDied, match=r"it saved nothing \(trainer\.save_freq\)"):
        run("trainer.default_local_dir=other", "trainer.max_restarts=0", dies=lambda step: True)


def test_late_workers_are_restarted_and_other_errors_are_not(run):
    run("trainer.save_freq=1", dies=once(2), error=WorkersLate)
    assert len(events("restart")) == 1
    for number, error in enumerate((WorkerError, DeadlineError)):  # a slow disk or tool is none of the workers'
        with pytest.raises(error, match="signal 9"):
            run(f"trainer.default_local_dir=other{number}", dies=once(2), error=error)
    assert LEFT == ["cluster"] * 4


def test_workers_that_die_while_loading_are_restarted_and_one_process_is_not(run):
    run(dies=once(0), at="init_workers")
    assert [event["failed_step"] for event in events("restart")] == [0]
    with pytest.raises(WorkerDied, match="signal 9$"):
        run("trainer.default_local_dir=other", dies=once(2), executor="local")


def test_resume_mode_disable_starts_from_scratch_once(run):
    run("trainer.save_freq=1", "trainer.total_training_steps=1")
    trainer = run("trainer.save_freq=1", "trainer.resume_mode=disable", dies=once(3))
    assert trainer.step == 3 and events("restart")[0]["checkpoint"] == 2
    assert not Path("run/previous-2").exists()


def test_run_from_a_named_checkpoint_restarts_there_until_it_has_its_own(run):
    run("trainer.save_freq=1")
    start = ["trainer.resume_from_path=run/global_step_1", "trainer.default_local_dir=run"]
    trainer = run(*start, dies=once(2))
    assert trainer.resume_from == Path("run/global_step_1"), "not from the newer one that an earlier run left"
    trainer = run("trainer.save_freq=1", *start, dies=once(3))
    assert trainer.resume_from == Path("run/global_step_2")


def test_restarted_sweep_skips_the_jobs_that_were_finished(job, monkeypatch):
    first, second, third = (load_ppo([*job, f"trainer.default_local_dir={name}"]).config for name in ("a", "b", "c"))
    event = {"attempt": 1}
    record = {"job": 2, "run": "b at another time", "in_a_row": 1, "saved": 2, "event": event}
    monkeypatch.setenv(restart.VARIABLE, json.dumps(record))
    restart.prepare(job)
    assert restart.VARIABLE not in os.environ, "later commands are not this restart"
    assert restart.is_finished(first) and not restart.is_finished(second)
    assert second.trainer.default_local_dir == "b at another time"
    restarts = restart.Restarts(second)
    assert (restarts.in_a_row, restarts.saved, restarts.event) == (1, 2, event)
    assert restarts.resumed(second).trainer.resume_mode == "auto"
    assert not restart.is_finished(third) and restart.Restarts(third).event is None


@pytest.mark.parametrize("stdin", [False, True])
def test_program_that_calls_the_trainer_itself_or_is_read_from_stdin_is_not_started_again(job, monkeypatch, stdin):
    """A notebook, or this test, has another command line; stdin would be empty, and the exit code 0."""
    if stdin:
        monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-", *job])
        monkeypatch.setattr(sys, "argv", ["-", *job])
    restart.prepare(job)
    what, act = restart.Restarts(load_ppo(job).config).on_hang(SimpleNamespace(ending=""), "it hangs")
    assert what == "This process is ended (exit code 3)" and act() is None


def test_run_that_hangs_while_it_is_closed_reports_its_error_and_is_not_started_again(run, monkeypatch):
    trainer = run("trainer.total_training_steps=1", executor="local")
    assert trainer.ending == "all steps are done"
    monkeypatch.setitem(restart._environment, "PATH", "")  # as in a command
    with pytest.raises(WorkerError):
        try:
            raise WorkerError("rank 1 has failed")
        finally:
            trainer.close()
    what, act = restart.Restarts(trainer.config).on_hang(trainer, "it hangs")
    ended = "The run had ended before that (WorkerError: rank 1 has failed). This process is ended (exit code 3)"
    assert what == ended and act() is None
