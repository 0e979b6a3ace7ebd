"""What user code hands back and how long it takes: one reader of numbers, one time limit, one way to a thread."""

import asyncio
import threading
from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest
import torch

from burnish.agents import guarded
from burnish.agents.guarded import closing_limit, finite, in_thread, within
from burnish.errors import ToolFailure

NUMBERS = [
    (1, 1.0), (-0.5, -0.5), (Fraction(1, 4), 0.25), (np.float32(0.5), 0.5), (np.int64(3), 3.0),
    (np.array(2.0), 2.0), (torch.tensor(0.5), 0.5), (torch.tensor(3), 3.0),
]  # fmt: skip
OTHERS = [
    True, False, np.bool_(True), torch.tensor(True), float("nan"), float("inf"), np.float32("nan"), 10**400,
    Fraction(-(10**400)), torch.tensor(float("-inf")), np.zeros(1), torch.zeros(2), None, "1", 1j, [1.0], b"1",
]  # fmt: skip


@pytest.mark.parametrize(("value", "number"), [*NUMBERS, *((other, None) for other in OTHERS)])
def test_finite_numbers_of_all_kinds_are_read_and_nothing_else(value, number):
    assert finite(value) == number and type(finite(value)) is type(number)


def test_a_late_call_has_ended_when_that_is_reported(monkeypatch):
    monkeypatch.setattr(guarded, "ENDING_S", 60.0)
    ended = []

    async def slow():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            ended.append(True)

    async def scenario():
        with pytest.raises(ToolFailure, match=r"^it did not end in 0\.05 s; .*multi_turn\.tool_timeout$"):
            await within(0.05, "it", slow())
        assert ended == [True]
        task = asyncio.create_task(within(None, "it", slow()))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True, True]

    asyncio.run(scenario())


def test_the_limit_of_closing_is_short_for_what_was_cancelled():
    async def scenario():
        before = closing_limit(60.0)
        asyncio.current_task().cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return [before, *map(closing_limit, (60.0, None, 0.5))]

    assert asyncio.run(scenario()) == [60.0, 5.0, 5.0, 0.5]


def test_a_thread_that_outlives_its_loop_ends_quietly(monkeypatch):
    """Also where the loop is closed just after it said that it was open."""
    complaints, leave = [], threading.Event()
    monkeypatch.setattr(threading, "excepthook", complaints.append)
    loop = asyncio.new_event_loop()
    task = loop.create_task(in_thread(lambda: leave.wait(60), "outlives"))
    loop.run_until_complete(asyncio.sleep(0.05))
    task.cancel()
    loop.run_until_complete(asyncio.wait({task}))
    loop.close()
    loop.is_closed = lambda: False
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "outlives"]
    leave.set()
    thread.join(60)
    del loop.is_closed
    assert not thread.is_alive() and not complaints
