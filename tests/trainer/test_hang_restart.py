"""A run whose process hangs exits and starts again from its newest checkpoint: the real command, in its own process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.tracking.run_status import read_status
from tests.trainer.conftest import events

RUN = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=2", "data.val_files=null", "trainer.save_freq=1",
       "trainer.total_training_steps=3", "trainer.max_restarts=1"]  # fmt: skip
# The command, with a hang in a call that never returns: in step 3, once or always.
COMMAND = """
import ctypes, os, signal, sys, threading, time
from contextlib import nullcontext
from pathlib import Path

from burnish.cli.main import main
from burnish.tracking import watchdog
from burnish.waits import ran, waiting

watchdog.LOOK_S = watchdog.STATUS_S = 0.05
watchdog.GRACE_S = 0.2
how, limit_s = sys.argv[1], float(sys.argv[2])
assert "LEFT_BY_A_LIBRARY" not in os.environ


def hang(place):
    if how != "always" and Path("hung").exists():
        return
    Path("hung").write_text(str(os.getpid()))
    os.environ["LEFT_BY_A_LIBRARY"] = "the port of a process that ends with this one"
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    with nullcontext() if how == "engine" else waiting("tool", "uid 3", place, limit_s) as wait:
        if how.startswith("SIG"):
            wait.deadline = None
            threading.Thread(target=stop, args=(wait,), daemon=True).start()
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)  # no signal and no error gets through


def stop(wait):
    time.sleep(1)  # until it hangs
    os.kill(os.getpid(), getattr(signal, how))
    wait.deadline = ran()


def around(owner, name, place, when=lambda trainer: True):
    original = getattr(owner, name)

    def call(self, *args, **kwargs):
        if when(self):
            hang(place)
        return original(self, *args, **kwargs)

    setattr(owner, name, call)


if how == "reading":
    from burnish.workers.model_worker import ModelFolder

    around(ModelFolder, "load", "a checkpoint to be read")
elif how == "engine":
    import burnish.rollout.in_process as in_process
    from burnish.rollout.hf.engine import LeftPaddedBatch

    in_process.STEP_DEADLINE_S = {"cpu": 30.0}
    around(LeftPaddedBatch, "step", "in the wait of the engine")
else:
    from burnish.trainer.ppo import PPOTrainer

    around(PPOTrainer, "describe", "a stone", lambda trainer: trainer.step == 3)
sys.exit(main(["ppo", *sys.argv[3:]]))
"""


@pytest.fixture
def start(job, reward):
    started = []

    def begin(how, limit_s, *keys):
        Path("command.py").write_text(COMMAND)
        command = [sys.executable, "command.py", how, str(limit_s), *job, *RUN, *keys]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def test_hanging_run_restarts_from_its_newest_checkpoint(start, train, metrics_of):
    process = start("once", 0.5)
    _, log = process.communicate(timeout=300)
    assert process.returncode == 0, log
    train(*RUN, "trainer.default_local_dir=whole")
    metrics = metrics_of("run")
    assert metrics[2].pop("failures/restarts") == 1 and metrics == metrics_of("whole"), "as if nothing had happened"
    (event,) = events("restart")
    assert (event["attempt"], event["failed_step"], event["checkpoint"]) == (1, 3, 2)
    late = [one for one in events("late_wait") if one.get("exit_code") == 3]
    assert len(late) == 1 and late[0]["stacks"] in event["error"] and late[0]["subject"] == "a stone"
    assert "in hang" in Path(late[0]["stacks"]).read_text()
    assert "restart 1 of 1: the run continues from run/global_step_2" in log
    assert Path("hung").read_text() == str(process.pid), "the process keeps its id"
    assert read_status("run").state == "done"


@pytest.mark.long
def test_run_that_hangs_again_exits_with_code_3_and_names_the_stacks(start):
    process = start("always", 0.5)
    _, log = process.communicate(timeout=300)
    assert process.returncode == 3, log
    last = events("late_wait")[-1]
    assert len(events("restart")) == 1 and last["exit_code"] == 3 and Path(last["stacks"]).exists()
    given_up = f"where all threads were: {last['stacks']}. Given up after trainer.max_restarts=1 restarts in a row"
    assert given_up in log and "continues from run/global_step_2. This process is ended (exit code 3)" in log
    assert read_status("run").state == "failed"


@pytest.mark.parametrize("number", [pytest.param("SIGINT", marks=pytest.mark.long), "SIGTERM"])
def test_run_that_was_stopped_while_it_hung_does_not_restart(start, number):
    process = start(number, 1000.0)
    _, log = process.communicate(timeout=300)
    assert process.returncode == 3 and not events("restart"), log
    assert "This process is ended (exit code 3)" in log


@pytest.mark.long
@pytest.mark.parametrize(("how", "subject"), [("reading", "a checkpoint to be read"), ("engine", "a step of ")])
def test_hang_of_a_step_or_of_the_disk_restarts_the_run(start, train, how, subject):
    """A step of the engine is a wait of its own; so is the reading of a checkpoint."""
    if how == "reading":
        train(*RUN, "trainer.total_training_steps=1")
    process = start(how, 0.5, "actor_rollout_ref.rollout.name=hf")
    _, log = process.communicate(timeout=300)
    assert process.returncode == 0, log
    (event,) = events("restart")
    stacks = Path(event["error"].rpartition(": ")[2]).name
    assert f"s for {subject}" in event["error"] and list(Path("run").rglob(stacks)), "or in previous-1"
