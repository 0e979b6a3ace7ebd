"""A job in the background ends, fails or takes too long where its owner asks for it."""

import signal
import threading
import time

import pytest

from burnish.errors import CheckpointError, DeadlineError
from burnish.trainer.background import Background
from burnish.waits import longest


def test_the_outcome_comes_once():
    background = Background[int](deadline=10)
    assert background.outcome(wait=True) is None
    background.start(lambda: 3, "counting")
    assert background.outcome(wait=True) == 3
    assert background.outcome(wait=True) is None


def test_without_waiting_a_job_that_runs_has_no_outcome_yet():
    background, go = Background[int](deadline=60), threading.Event()
    background.start(lambda: 3 if go.wait(60) else 0, "counting")
    assert background.outcome(wait=False) is None
    go.set()
    while (outcome := background.outcome(wait=False)) is None:
        time.sleep(0.001)
    assert outcome == 3


@pytest.mark.parametrize("error", [CheckpointError("full"), ValueError("a bug"), KeyboardInterrupt()])
@pytest.mark.parametrize("wait", [True, False])
def test_a_failure_is_raised_as_it_was_and_once(error, wait):
    background = Background[int](deadline=10)

    def fail():
        raise error

    background.start(fail, "failing")
    with pytest.raises(type(error)) as raised:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            background.outcome(wait=wait)
            time.sleep(0.001)
    assert raised.value is error
    assert background.outcome(wait=True) is None


def test_ctrl_c_ends_the_wait_and_not_the_job():
    background, go = Background[int](deadline=60), threading.Event()
    background.start(lambda: 3 if go.wait(120) else 0, "writing checkpoint run/global_step_3")
    main = threading.main_thread().ident

    def interrupt():
        while not any(wait.owner == "the trainer" for wait in longest()):  # in `outcome`, and nowhere else
            time.sleep(0.01)
        time.sleep(0.2)  # until it blocks
        signal.pthread_kill(main, signal.SIGINT)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=interrupt, daemon=True).start()
        background.outcome(wait=True)
    assert time.monotonic() - started < 50, "before the deadline"
    go.set()
    assert background.outcome(wait=True) == 3


def test_a_job_that_hangs_is_named_and_given_up():
    background, go = Background[int](deadline=0.05), threading.Event()
    background.start(lambda: 3 if go.wait(60) else 0, "writing checkpoint run/global_step_3")
    thread = background._job.thread
    with pytest.raises(
        DeadlineError, match=r"writing checkpoint run/global_step_3 has not ended within 0\.05 s.*trainer"
    ):
        background.outcome(wait=True)
    assert background.outcome(wait=True) is None, "nobody waits twice for what hangs"
    go.set()
    thread.join(30)
    assert not longest()
