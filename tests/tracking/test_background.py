"""A job in the background ends, fails or takes too long where its owner asks for it."""

import signal
import threading
import time

import pytest

from burnish.errors import CheckpointError, DeadlineError
from burnish.tracking.background import Background
from burnish.waits import longest


def background(deadline=60.0, **settings):
    return Background[int]("here", "checkpoint", deadline, hint="Buy a disk", owner="the trainer", **settings)


def test_the_outcome_comes_once_after_all_jobs_in_order():
    jobs, go, done = background(depth=2), threading.Event(), []
    assert jobs.outcome(wait=True) is None
    jobs.start(lambda: 3 if go.wait(60) else 0, "counting")
    assert jobs.outcome(wait=False) is None, "it runs"
    go.set()
    while (outcome := jobs.outcome(wait=False)) is None:
        time.sleep(0.001)
    assert outcome == 3 and jobs.outcome(wait=True) is None
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
    with pytest.raises(
        DeadlineError, match=r"writing checkpoint run/global_step_3 has not ended within 0\.05 s.*Buy a disk"
    ):
        jobs.outcome(wait=True)
    assert jobs.outcome(wait=True) is None, "nobody waits twice for what hangs"
    go.set()
    thread.join(30)
    assert not longest()
    jobs, go = background(deadline=0.05), threading.Event()
    with pytest.raises(DeadlineError, match=r"job \d has not ended within 0\.05 s"):
        for k in range(4):
            jobs.start(lambda: 3 if go.wait(60) else 0, f"job {k}")
    go.set()
