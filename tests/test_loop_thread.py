"""A thread with an event loop: what its end takes along, and that nothing in it keeps others from ending."""

import asyncio
import contextlib
import gc
import signal
import threading

import pytest

from burnish import loop_thread, waits
from burnish.errors import DeadlineError, WorkerError
from burnish.loop_thread import LoopThread, run_to_end


async def nothing():
    pass


def test_work_in_flight_is_cancelled_before_the_ending():
    happened, begun = [], threading.Event()

    async def work():
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            happened.append("cancelled")

    async def ending():
        happened.append("ended")

    loop = LoopThread("the owner", ending, "here")
    future = loop.run(work())
    assert begun.wait(30)
    loop.close()
    assert future.cancelled() and happened == ["cancelled", "ended"]
    assert not loop._thread.is_alive() and not waits.longest()
    with pytest.raises(WorkerError, match="the owner is closed"):
        loop.run(nothing())


def test_an_ending_that_takes_too_long_is_given_up_and_the_thread_ends():
    seen = []

    async def never():
        while not seen:
            seen.extend((wait.kind, wait.subject) for wait in waits.longest())
            await asyncio.sleep(0.001)
        await asyncio.Event().wait()

    loop = LoopThread("the score pool", never, "here", "reward", close_s=4.0)  # it begins, on a busy machine
    loop.run(nothing()).result(30)
    with pytest.raises(DeadlineError, match=r"the score pool has not ended what it had begun within 4 s: .*here"):
        loop.close()
    loop._thread.join(30)
    assert not loop._thread.is_alive(), "its loop goes on"
    assert seen == [("reward", "the score pool to end what it has begun")] and not waits.longest()
    loop.close()  # again, to no effect


@pytest.mark.filterwarnings("ignore:coroutine 'LoopThread._end' was never awaited")
def test_a_thread_that_is_blocked_is_left_behind(monkeypatch):
    monkeypatch.setattr(loop_thread, "CLOSE_SECONDS", 0.5)
    begun, go = threading.Event(), threading.Event()

    async def block():
        begun.set()
        go.wait()

    loop = LoopThread("the runner of agent loops", nothing, "agent-loops", close_s=0.5)
    loop.run(block())
    assert begun.wait(30)
    try:
        with pytest.raises(DeadlineError, match="something blocks thread agent-loops"):
            loop.close()
        assert loop._thread.is_alive() and loop._thread.daemon, "the process could not end"
    finally:
        go.set()
    loop._thread.join(30)
    assert not loop._thread.is_alive()
    del loop
    gc.collect()  # what it had no time for warns here, and in no other test


def test_what_raises_system_exit_ends_its_own_work_alone():
    async def leave():
        raise SystemExit(7)

    async def of_a_task():
        await asyncio.create_task(leave())

    loop = LoopThread("the owner", nothing, "here")
    for work in (leave, of_a_task):
        with pytest.raises(SystemExit):
            loop.run(work()).result(30)
    assert loop.run(nothing()).result(30) is None
    loop.close()
    assert not loop._thread.is_alive()


def test_what_the_ending_raises_rises_and_the_thread_ends():
    async def fail():
        raise TimeoutError("of its own")

    loop = LoopThread("the owner", fail, "here")
    loop.run(nothing()).result(30)
    with pytest.raises(TimeoutError, match="of its own"):
        loop.close()
    assert not loop._thread.is_alive()


def test_without_a_thread_work_runs_where_it_is_waited_for_and_close_drops_the_rest():
    ran, names = [], []

    async def work(number):
        ran.append(number)
        names.append(threading.current_thread().name)
        return number

    async def ending():
        ran.append("ended")

    loop = LoopThread("the owner", ending, threaded=False)
    first, dropped = loop.run(work(1)), loop.run(work(2))
    assert not ran and loop.result(first) == 1 and names == [threading.current_thread().name]
    loop.close()
    loop.close()
    assert ran == [1, "ended"] and not dropped.done()
    with pytest.raises(WorkerError, match="the owner is closed"):
        loop.run(nothing())


def test_ctrl_c_cancels_work_that_is_waited_for_inside_another_event_loop():
    """As in a notebook, where the work runs in another thread than the one that is interrupted."""
    ended = []

    async def work():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def cell():
        run_to_end(work())

    loop = asyncio.new_event_loop()
    with contextlib.closing(loop), pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(cell())
    assert ended == ["cancelled"]
