"""The register of waits: who waits for what, and which waits are late."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from burnish import waits
from burnish.waits import counts, longest, owned_by, waiting


@pytest.fixture
def clock(monkeypatch):
    """`clock.now` as the time, at which nobody has looked yet."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(waits, "_looked_at", float("inf"))
    monkeypatch.setattr(waits, "_paused_s", 0.0)
    return clock


def test_wait_is_registered_while_it_lasts(clock):
    with waiting("tool", "uid 3", "search", 60.0) as first:
        clock.now = 102.0
        with waiting("engine", "uid 4", "a request", None) as second:
            clock.now = 105.0
            assert longest() == [first, second] and longest(1) == [first]
            assert counts() == {"tool": 1, "engine": 1}
            assert (first.age, first.deadline, second.deadline) == (5.0, 160.0, None)
            assert str(first) == "search (uid 3)"
        assert longest() == [first]
    assert longest() == []
    with pytest.raises(ValueError), waiting("tool", "", "x", 5.0):
        raise ValueError
    assert longest() == []


def test_owner_is_inherited_by_tasks_and_defaults_to_the_thread():
    """Also on the loop of another thread, as from a trajectory to the pool of scorers."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def child():
        with waiting("tool", "", "x", 5.0) as wait:
            return wait.owner

    async def trajectory(name):
        owned_by(name)
        await asyncio.sleep(0)
        elsewhere = asyncio.run_coroutine_threadsafe(child(), loop)
        return await asyncio.create_task(child()), await asyncio.wrap_future(elsewhere)

    async def both():
        return await asyncio.gather(trajectory("uid 1"), trajectory("uid 2"), child())

    assert asyncio.run(both()) == [("uid 1",) * 2, ("uid 2",) * 2, threading.current_thread().name]
    loop.call_soon_threadsafe(loop.stop)
    with waiting("tool", "somebody", "x", 5.0) as wait:
        assert wait.owner == "somebody"


def test_threads_register_concurrently():
    def work(i):
        for _ in range(200):
            with waiting("tool", str(i), "x", 5.0):
                longest(5), counts()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert longest() == []


@pytest.fixture
def reported(monkeypatch):
    """What was reported: the subject, and whether to return only when it is written."""
    calls = []
    monkeypatch.setattr(waits, "reporter", lambda wait, written: calls.append((wait.subject, written)) or "stacks.txt")
    return calls


def test_late_wait_is_reported_once(reported):
    with waiting("tool", "", "in time", 60.0), waiting("tool", "", "no limit", None):
        pass
    assert reported == []
    with waiting("tool", "", "late", -1.0) as wait:
        pass
    assert reported == [("late", False)] and wait.stacks == "stacks.txt"
    with waiting("tool", "", "tells itself", 60.0) as wait:
        assert wait.overdue(until_written=True) == wait.overdue() == "stacks.txt"
        assert wait.report_only, "it ends itself"
    assert reported[1:] == [("tells itself", False), ("tells itself", True)]
    with waiting("tool", "", "was found late", 60.0) as wait:
        wait.report()
        assert not wait.report_only
        wait.overdue(until_written=True)
    assert reported[3:] == [("was found late", False), ("was found late", True)]
    with waiting("worker", "", "jobs before it", 60.0) as wait:
        wait.deadline = waits.ran() - 1  # it can be moved
    assert reported[5:] == [("jobs before it", False)]


def test_two_threads_that_notice_a_late_wait_report_it_once(monkeypatch):
    begun, go, told = threading.Event(), threading.Event(), []

    def slow(wait, until_written):
        told.append(wait.subject)
        begun.set()
        return "stacks.txt" if go.wait(60) else ""

    monkeypatch.setattr(waits, "reporter", slow)
    with waiting("tool", "", "late", 60.0) as wait, ThreadPoolExecutor(2) as threads:
        first = threads.submit(wait.report)
        assert begun.wait(60)
        second = threads.submit(wait.overdue)
        go.set()
        assert first.result(60) == second.result(60) == "stacks.txt"
    assert told == ["late"]


def test_clock_leaves_out_pauses(clock):
    assert waits.ran() == 100.0
    clock.now = 100.0 + waits.PAUSE_S
    assert waits.ran() == 105.0, "whoever looks may be late"
    clock.now = 1105.0
    assert waits.ran() == 105.0 == waits.ran(), "counted once, whoever looks"
    clock.now = 1106.0
    assert waits.ran() == 106.0
    clock.now = 2106.0
    assert waits.ran() == 106.0, "and for ever"
    clock.now = 3106.0
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: waits.ran(), range(64))) == {106.0}, "once in all threads"


def test_pause_of_the_process_does_not_count_as_waiting(clock, reported):
    with waiting("checkpoint", "", "before the pause", 60.0) as before, waiting("tool", "", "x", None) as endless:
        clock.now = 101.0
        assert before.age == 1.0
        clock.now = 1101.0
        with waiting("checkpoint", "", "after it", 60.0) as after:
            assert (before.age, endless.age, after.age) == (1.0, 1.0, 0.0)
        clock.now = 1102.0
        assert before.age == 2.0 and after.deadline - before.deadline == 1.0
    assert reported == []


def test_failing_reporter_does_not_disturb_the_wait(monkeypatch, caplog):
    def fails(wait, until_written):
        raise OSError("Stale file handle")

    monkeypatch.setattr(waits, "reporter", fails)
    with waiting("tool", "", "late", -1.0):
        pass
    assert "could not be reported" in caplog.text and longest() == []


def test_limit_in_words():
    assert [waits.limit_in_words(seconds) for seconds in (None, 1800, 53.2171, -3.0)] == [
        "no limit", "limit 1800 s", "limit 53.2 s", "limit 0 s",
    ]  # fmt: skip
