"""The register of waits: who waits for what, and how a wait that does not end is ended."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from burnish import waits
from burnish.errors import DeadlineError
from burnish.waits import counts, is_waiting, longest, owned_by, waiting

SOON_S = 30.0  # for what happens at once, on a busy machine


def until(condition):
    end = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@pytest.fixture
def clock(monkeypatch):
    """`clock.now` as the time, at which nobody has looked yet."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(waits, "_looked_at", float("inf"))
    monkeypatch.setattr(waits, "_stood_still", 0.0)
    return clock


def test_a_wait_is_there_as_long_as_it_lasts(clock):
    with waiting("tool", "uid 3", "search", 60.0) as first:
        clock.now = 102.0
        with waiting("engine", "uid 4", "a request", None) as second:
            clock.now = 105.0
            assert longest() == [first, second] and longest(1) == [first]
            assert counts() == {"tool": 1, "engine": 1}
            assert (first.age, first.deadline, second.deadline) == (5.0, 160.0, None)
            assert str(first) == "search (uid 3)"
        assert longest() == [first] and not is_waiting(second)
    assert longest() == []


def test_one_that_fails_is_over_too():
    with pytest.raises(ValueError), waiting("tool", "", "x", 5.0):
        raise ValueError
    assert longest() == []


def test_the_owner_is_that_of_the_task_or_the_thread():
    async def child():
        with waiting("tool", "", "x", 5.0) as wait:
            return wait.owner

    async def trajectory(name):
        owned_by(name)
        await asyncio.sleep(0)
        return await asyncio.create_task(child())

    async def both():
        return await asyncio.gather(trajectory("uid 1"), trajectory("uid 2"), child())

    assert asyncio.run(both()) == ["uid 1", "uid 2", threading.current_thread().name]
    with waiting("tool", "somebody", "x", 5.0) as wait:
        assert wait.owner == "somebody"


def test_the_owner_goes_along_to_the_loop_of_another_thread():
    """As from a trajectory to the pool of scorers."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def there():
        with waiting("reward", "", "a score", 5.0) as wait:
            return wait.owner

    async def trajectory():
        owned_by("uid 7")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), loop))

    assert asyncio.run(trajectory()) == "uid 7"
    loop.call_soon_threadsafe(loop.stop)


def test_many_threads_at_once():
    def work(i):
        for _ in range(200):
            with waiting("tool", str(i), "x", 5.0):
                longest(5), counts()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert longest() == []


class Teller:
    def __init__(self):
        self.told = []

    def __call__(self, wait, until_written):
        self.told.append((wait.subject, until_written))
        return "stacks.txt"


@pytest.fixture
def teller(monkeypatch):
    monkeypatch.setattr(waits, "teller", teller := Teller())
    return teller


def test_one_that_ends_late_is_told_of_once(teller):
    with waiting("tool", "", "in time", 60.0), waiting("tool", "", "no limit", None):
        pass
    assert teller.told == []
    with waiting("tool", "", "late", -1.0) as wait:
        pass
    assert teller.told == [("late", False)] and wait.stacks == "stacks.txt"
    with waiting("tool", "", "tells itself", 60.0) as wait:
        assert wait.overdue(until_written=True) == wait.overdue() == "stacks.txt"
        assert wait.is_only_told, "it ends itself"
    assert teller.told[1:] == [("tells itself", False), ("tells itself", True)]
    with waiting("tool", "", "was found late", 60.0) as wait:
        wait.tell()
        assert not wait.is_only_told
        wait.overdue(until_written=True)
    assert teller.told[3:] == [("was found late", False), ("was found late", True)]


def test_two_that_find_it_late_at_once_tell_of_it_once(monkeypatch):
    begun, go, told = threading.Event(), threading.Event(), []

    def slow(wait, until_written):
        told.append(wait.subject)
        begun.set()
        return "stacks.txt" if go.wait(60) else ""

    monkeypatch.setattr(waits, "teller", slow)
    with waiting("tool", "", "late", 60.0) as wait, ThreadPoolExecutor(2) as threads:
        first = threads.submit(wait.tell)
        assert begun.wait(60)
        second = threads.submit(wait.overdue)
        go.set()
        assert first.result(60) == second.result(60) == "stacks.txt"
    assert told == ["late"]


def test_the_deadline_can_be_moved(teller):
    with waiting("worker", "", "jobs before it", 60.0) as wait:
        wait.deadline = waits.ran() - 1
    assert teller.told == [("jobs before it", False)]


def test_a_coroutine_is_ended_where_it_waits(monkeypatch):
    monkeypatch.setattr(waits, "PROMPT_S", SOON_S)

    async def wait_for_ever():
        with waiting("engine", "uid 1", "a request", 60.0):
            await asyncio.Event().wait()

    async def both():
        task = asyncio.create_task(wait_for_ever())
        while not longest():
            await asyncio.sleep(0)
        (wait,) = longest()
        wait.overdue()
        await asyncio.to_thread(wait.end)
        with pytest.raises(DeadlineError, match=r"^a request \(uid 1\) has not ended after \d+ s \(limit 60 s\)"):
            await task
        assert not task.cancelled() and task.cancelling() == 0 and not wait.is_deaf

    asyncio.run(both())
    assert longest() == []


def test_one_whose_caller_gives_it_up_stays_cancelled():
    async def both():
        async def wait_for_ever():
            with waiting("engine", "uid 1", "a request", 60.0):
                await asyncio.Event().wait()

        task = asyncio.create_task(wait_for_ever())
        while not longest():
            await asyncio.sleep(0)
        (wait,) = longest()
        wait.overdue()
        wait.end()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(both())


def test_one_that_has_just_ended_is_left_alone():
    async def both():
        async def short():
            with waiting("engine", "uid 1", "a request", 60.0) as wait:
                wait.overdue()
                wait.end()  # heard in the next pass of the loop
            await asyncio.sleep(0.01)
            return "went on"

        assert await asyncio.create_task(short()) == "went on"

    asyncio.run(both())


def in_a_thread(work):
    """What `work` raises in a thread of its own."""
    found = []

    def run():
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (what it was is the test's business)
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def poll_for_ever():
    with waiting("checkpoint", "the trainer", "writing", 60.0):
        while True:
            time.sleep(0.005)


def test_a_thread_is_ended_as_soon_as_it_runs_python():
    thread, found = in_a_thread(poll_for_ever)
    until(longest)
    (wait,) = longest()
    wait.overdue()
    wait.end()
    thread.join(SOON_S)
    assert isinstance(found[0], DeadlineError)
    assert str(found[0]).startswith("writing (the trainer) has not ended after ")
    assert longest() == []


def test_an_error_that_comes_while_the_wait_ends_leaves_nothing_behind():
    """Wherever it arrives, also before the first line of `__exit__`: no wait stays, and no error comes later."""
    for pause in range(300):
        inside, went_on = threading.Event(), []

        def work(pause=pause, inside=inside, went_on=went_on):
            with waiting("checkpoint", "the trainer", "writing", 60.0) as wait:
                wait.tell()
                inside.set()
                for _ in range(pause):
                    pass
            for _ in range(2000):  # where one that is sent too late would arrive
                pass
            went_on.append(True)

        thread, found = in_a_thread(work)
        assert inside.wait(SOON_S)
        for wait in longest():
            wait.end()
        thread.join(SOON_S)
        assert longest() == [] and not waits._ending.locked() and bool(found) != bool(went_on)
        assert not found or (isinstance(found[0], DeadlineError) and "writing (the trainer)" in str(found[0]))


@pytest.mark.parametrize("block", [lambda: time.sleep(1000), lambda: threading.Event().wait()])
def test_the_main_thread_is_woken_in_a_blocking_call(block):
    assert threading.current_thread() is threading.main_thread()
    waits.let_main_be_woken()

    def end():
        until(longest)
        (wait,) = longest()
        wait.overdue()
        while is_waiting(wait):  # the signal may come just before it blocks
            wait.end()
            time.sleep(0.1)

    threading.Thread(target=end, daemon=True).start()
    with pytest.raises(DeadlineError, match=r"a lock \(me\) has not ended"), waiting("worker", "me", "a lock", 60.0):
        block()
    assert longest() == []


def test_what_blocks_an_event_loop_is_ended_and_the_loop_goes_on():
    """A tool that blocks: the wait for it is in the loop that it blocks, which does not hear that it is to end."""
    waits.let_main_be_woken()
    blocked = threading.Event()

    def end():
        assert blocked.wait(SOON_S)
        (wait,) = longest()
        wait.tell()
        wait.end()
        assert wait.is_deaf
        while is_waiting(wait):  # the signal may come just before it blocks
            wait.end()
            time.sleep(5)  # longer than the loop needs to go on: a second error would be one too many

    async def blocking_tool():
        blocked.set()
        time.sleep(1000)

    async def call():
        task = asyncio.create_task(blocking_tool())
        with waiting("tool", "uid 1", "a tool", 60.0):
            await asyncio.wait({task})
        return task.exception()

    threading.Thread(target=end, daemon=True).start()
    error = asyncio.run(call())
    assert isinstance(error, DeadlineError) and "a tool (uid 1)" in str(error)
    assert str(error).startswith(f"thread {threading.current_thread().name} is blocked here")


def test_what_a_loop_hears_late_does_not_end_what_waits_there(monkeypatch):
    """It was blocked: what waits there may go on by itself."""
    monkeypatch.setattr(waits, "PROMPT_S", 0.05)

    async def run():
        with waiting("tool", "uid 1", "a tool", 60.0) as wait:
            wait.tell()
            wait.end()
            time.sleep(0.2)
            await asyncio.sleep(0.01)
            assert not wait.is_deaf and wait.tries == 0
        return "went on"

    assert asyncio.run(run()) == "went on"


def test_what_a_thread_does_is_told_by_its_youngest_wait():
    me = threading.get_ident()

    def compute():
        with waiting("engine", "", "a step", 60.0) as step:
            assert waits.at_work(me) is step
            with waiting("disk", "", "a file", 60.0) as file:
                assert waits.at_work(me) is file

    async def run():
        with waiting("tool", "", "a tool", 60.0) as tool:
            assert tool.task is asyncio.current_task() and waits.at_work(me) is None
            compute()
            assert waits.at_work(me) is None

    assert waits.at_work(me) is None
    asyncio.run(run())
    with waiting("worker", "", "a call, with an event loop inside", 60.0):
        asyncio.run(run())


def test_a_signal_that_comes_when_something_else_goes_on_is_dropped(monkeypatch):
    waits.let_main_be_woken()
    with waiting("worker", "", "an old one", 60.0) as old:
        monkeypatch.setattr(waits, "_main_struck", old)
        with waiting("engine", "", "a step", 60.0):
            waits._on_signal(0, None)
        monkeypatch.setattr(waits, "_main_struck", old)
        with pytest.raises(DeadlineError):
            waits._on_signal(0, None)
    monkeypatch.setattr(waits, "_main_struck", old)
    waits._on_signal(0, None)


def test_the_clock_goes_on_where_it_stood_before_a_pause(clock):
    assert waits.ran() == 100.0
    clock.now = 100.0 + waits.PAUSE_S
    assert waits.ran() == 105.0, "whoever looks may be late"
    clock.now = 1105.0
    assert waits.ran() == 105.0 == waits.ran(), "counted once, whoever looks"
    clock.now = 1106.0
    assert waits.ran() == 106.0
    clock.now = 2106.0
    assert waits.ran() == 106.0, "and for ever"


def test_it_begins_with_the_first_look(clock):
    clock.now = 1000.0
    assert waits.ran() == 1000.0


def test_a_pause_of_the_process_is_no_waiting(clock, teller):
    with waiting("checkpoint", "", "before the pause", 60.0) as before, waiting("tool", "", "x", None) as endless:
        clock.now = 101.0
        assert before.age == 1.0
        clock.now = 1101.0
        with waiting("checkpoint", "", "after it", 60.0) as after:
            assert (before.age, endless.age, after.age) == (1.0, 1.0, 0.0)
        clock.now = 1102.0
        assert before.age == 2.0 and after.deadline - before.deadline == 1.0
    assert teller.told == []


def test_many_that_look_after_a_pause_count_it_once(clock):
    waits.ran()
    clock.now = 1100.0
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: waits.ran(), range(64))) == {100.0}


def test_a_teller_that_fails_is_no_business_of_what_waits(monkeypatch, caplog):
    def fails(wait, until_written):
        raise OSError("Stale file handle")

    monkeypatch.setattr(waits, "teller", fails)
    with waiting("tool", "", "late", -1.0):
        pass
    assert "could not be told" in caplog.text and longest() == []


def test_limits_in_words():
    assert [waits.limit_in_words(seconds) for seconds in (None, 1800, 53.2171, -3.0)] == [
        "no limit", "limit 1800 s", "limit 53.2 s", "limit 0 s",
    ]  # fmt: skip


def test_an_error_sent_to_a_thread_travels_between_processes():
    """It is raised by a class of its own, which no other process knows."""
    from burnish.controller.failures import carry, restore

    wait = waiting("tool", "", "x", None)
    wait.text = "late"
    struck = type("DeadlineError", (waits._Struck,), {"wait": wait})()
    assert type(restored := restore(carry(struck))) is DeadlineError and str(restored) == "late"
