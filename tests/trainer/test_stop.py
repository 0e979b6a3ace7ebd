"""Ctrl-C at any place of a step saves what was trained; the run that resumes ends as one that was never stopped."""

import os
import signal
from pathlib import Path

import pytest

from burnish.entry.ending import StopRequest
from burnish.tracking import Tracker
from burnish.trainer.validate import Validator
from burnish.workers.actor_rollout_ref import ActorRolloutRefWorker
from tests.trainer.conftest import GRPO, interrupted, once, rollouts, same_weights, state_of, validated

KEYS = [*GRPO, "trainer.test_freq=2", "trainer.save_freq=null", "trainer.total_training_steps=4"]


@pytest.mark.parametrize(
    ("owner", "name", "call", "saved"),
    [
        (ActorRolloutRefWorker, "finish_sequences", 4, 2),  # the first is the validation before training
        (ActorRolloutRefWorker, "update_actor", 3, 3),
        (Validator, "__call__", 2, 2),
        (Validator, "__call__", 3, 4),
        (Tracker, "log", 4, 3),
    ],
    ids=["generating", "updating", "validating", "validating the last step", "logging"],
)
def test_stopped_run_is_saved_and_resumes_exactly(train, made, metrics_of, monkeypatch, owner, name, call, saved):
    once(made, "whole", train, *KEYS, "trainer.default_local_dir=whole")
    run = [*KEYS, "trainer.default_local_dir=parts"]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, name, interrupted(getattr(owner, name), call))
        train(*run)
    assert Path("parts/latest_checkpointed_iteration.txt").read_text().strip() == str(saved)
    train(*run)
    train(*run)  # nothing is left to do
    assert metrics_of("whole") == metrics_of("parts") and rollouts(4, "whole") == rollouts(4, "parts")
    assert validated(4, "whole") == validated(4, "parts")
    assert state_of(4, "whole")["experience"] == state_of(4, "parts")["experience"]
    assert same_weights(4, "whole", "parts")


def test_step_is_finished_where_the_terminal_is_gone(monkeypatch):
    def gone(file, text):
        raise OSError("Input/output error")

    stop, done = StopRequest(), []
    monkeypatch.setattr(os, "write", gone)
    with stop.delayed():
        signal.raise_signal(signal.SIGINT)
        done.append("the rest of the step")
    assert stop.asked and done


def test_second_signal_in_an_update_does_not_wait_for_it(train, monkeypatch):
    update = interrupted(ActorRolloutRefWorker.update_actor, 2, times=2)
    monkeypatch.setattr(ActorRolloutRefWorker, "update_actor", update)
    with pytest.raises(KeyboardInterrupt):
        train(*KEYS)
    assert not list(Path("run").glob("global_step_*"))


def test_run_that_saves_nothing_saves_nothing_when_stopped(train, monkeypatch):
    monkeypatch.setattr(
        ActorRolloutRefWorker, "finish_sequences", interrupted(ActorRolloutRefWorker.finish_sequences, 4)
    )
    with pytest.raises(KeyboardInterrupt):
        train(*KEYS, "trainer.save_freq=-1")
    assert not list(Path("run").glob("global_step_*"))
