"""The watchdog: the status of a process, dumps of waits that are late, and their end."""

import asyncio
import itertools
import json
import linecache
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from burnish import waits
from burnish.agents.guarded import within
from burnish.errors import DeadlineError, ToolFailure
from burnish.loop_thread import LoopThread
from burnish.rollout.native.flight import Watch
from burnish.tracking import stacks
from burnish.tracking import watchdog as module
from burnish.tracking.watchdog import EXIT_CODE, Watchdog
from burnish.waits import longest, waiting

SOON_S = 30.0


def until(condition):
    end = time.monotonic() + SOON_S
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Looks often, and gives little grace."""
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    monkeypatch.setattr(module, "STATUS_S", 0.02)
    monkeypatch.setattr(module, "GRACE_S", 0.5)
    monkeypatch.setattr(module, "TRIES", 1000)  # a thread that is slow to hear must not end the tests
    monkeypatch.setattr(module, "WRITING_S", SOON_S)
    monkeypatch.setattr(module, "WITNESSING_S", SOON_S)
    monkeypatch.setattr(waits, "PROMPT_S", 0.2)  # less, as it is


@pytest.fixture
def patient(monkeypatch):
    """Where something is ended: one error is enough for a thread that hears of it late."""
    monkeypatch.setattr(module, "GRACE_S", 2.0)


@pytest.fixture
def events():
    return []


@pytest.fixture
def watched(tmp_path, events):
    dog = Watchdog(tmp_path, "controller", event=lambda kind, **facts: events.append((kind, facts)), steps=80)
    dog.start()
    yield dog
    dog.stop()
    assert longest() == []


def status(folder, name="controller"):
    try:
        return json.loads((folder / "status" / f"{name}.json").read_text())
    except FileNotFoundError:
        return None


def dumps(folder):
    return sorted((folder / "stacks").glob("*.txt"))


def test_the_status_names_the_process_its_step_and_the_longest_waits(watched, tmp_path):
    watched.step = 3
    with waiting("worker", "the trainer", "update_actor", 1800.0), waiting("tool", "uid 3, sample 1", "search", None):
        found = until(lambda: (now := status(tmp_path)) and now["counts"] == {"worker": 1, "tool": 1} and now)
    assert (found["name"], found["state"], found["step"], found["steps"]) == ("controller", "running", 3, 80)
    first, second = found["waits"]
    assert (first["kind"], first["owner"], first["subject"], first["limit"]) == (
        "worker", "the trainer", "update_actor", 1800.0,
    )  # fmt: skip
    assert first["age"] >= second["age"] and second["limit"] is None


def test_the_last_status_says_how_it_ended(tmp_path):
    for state in ("done", "failed", "stopped"):
        dog = Watchdog(tmp_path, "x")
        dog.start()
        dog.stop(state)
        assert status(tmp_path, "x")["state"] == state
    assert not [thread for thread in threading.enumerate() if thread.name in ("watchdog", "status")]
    assert waits.teller is None


def test_thousands_of_waits_are_counted_and_the_longest_shown(watched, tmp_path):
    many = [waiting("engine", f"uid {i}", "a request", None) for i in range(3000)]
    for wait in many:
        wait.__enter__()
    try:
        found = until(lambda: (now := status(tmp_path)) and now["counts"] == {"engine": 3000} and now)
    finally:
        for wait in many:
            wait.__exit__(None, None, None)
    assert [wait["owner"] for wait in found["waits"]] == [f"uid {i}" for i in range(20)]


def test_until_the_folder_is_the_runs_own_no_status_is_written(tmp_path):
    early = tmp_path / "status/controller.starting"
    early.parent.mkdir()
    early.write_text("of the run whose folder it is")
    stage, looks = [""], []
    dog = Watchdog(tmp_path, "controller", stage=lambda: looks.append(stage[0]) or stage[0])
    dog.start()
    until(lambda: len(looks) > 3)
    assert list(early.parent.iterdir()) == [early]
    stage[0] = "running"
    until(lambda: status(tmp_path))
    dog.stop()


def test_while_it_starts_its_status_lies_beside_that_of_an_earlier_run(tmp_path):
    file = tmp_path / "status/controller.json"
    file.parent.mkdir()
    file.write_text("of an earlier run")
    early, stage = file.with_name("controller.starting"), ["starting"]
    dog = Watchdog(tmp_path, "controller", stage=lambda: stage[0])
    dog.start()
    until(early.exists)
    assert json.loads(early.read_text())["state"] == "starting" and file.read_text() == "of an earlier run"
    stage[0] = "running"
    until(lambda: not early.exists())
    assert until(lambda: status(tmp_path))["state"] == "running"
    dog.stop()


def test_of_one_that_ends_before_it_begins_no_status_stays(tmp_path):
    dog = Watchdog(tmp_path, "controller", stage=lambda: "starting")
    dog.start()
    until((tmp_path / "status/controller.starting").exists)
    dog.stop("failed")
    assert not (tmp_path / "status").exists()


def test_a_wait_that_ends_late_leaves_a_dump_an_event_and_a_warning(watched, tmp_path, events, caplog, monkeypatch):
    monkeypatch.setattr(module, "GRACE_S", SOON_S)
    with waiting("retriever", "uid 3", "a query", 60.0) as wait:
        wait.deadline = waits.ran()
        until(lambda: dumps(tmp_path) and events and wait.stacks)
        assert wait.late_since is not None
    (file,) = dumps(tmp_path)
    text = file.read_text()
    assert "controller, pid " in text and "late: retriever: a query (uid 3) has waited " in text
    assert "thread MainThread, which waits for a query (uid 3):\n" in text and "test_watchdog.py" in text
    ((kind, facts),) = events
    assert kind == "late_wait" and (facts["wait"], facts["owner"], facts["subject"]) == (
        "retriever", "uid 3", "a query",
    )  # fmt: skip
    assert facts["stacks"] == wait.stacks == str(file)
    until(lambda: f"for a query (uid 3) (limit 60 s); where all threads are: {file}" in caplog.text)
    assert watched.late == 1


def test_tasks_are_in_the_dump_with_where_they_wait(watched, tmp_path):
    async def deep():
        await asyncio.Event().wait()

    async def tool():
        await deep()

    async def run():
        tasks = [asyncio.create_task(tool(), name=f"uid {i}") for i in range(12)]
        await asyncio.sleep(0)
        with waiting("tool", "uid 3", "a tool", 60.0) as wait:
            wait.overdue(until_written=True)
        for task in tasks:
            task.cancel()
        return wait.stacks

    text = Path(asyncio.run(run())).read_text()
    assert "uid 0; uid 1; uid 10; uid 11; uid 2; uid 3; uid 4; uid 5 and 4 more:\n" in text
    place = text.partition("and 4 more:\n")[2]
    assert place.index("in tool\n") < place.index("in deep\n") < place.index("in wait\n")


def test_what_is_late_together_is_in_one_dump(watched, tmp_path, events):
    for i in range(5):
        with waiting("tool", f"uid {i}", "x", -1.0):
            pass
    until(lambda: len(events) == 5)
    (file,) = dumps(tmp_path)
    assert {facts["stacks"] for _, facts in events} == {str(file)} and watched.late == 5


def test_what_workers_say_is_added(watched, tmp_path, monkeypatch):
    monkeypatch.setattr(waits, "witnesses", [lambda: "workers:\nrank 1 is in update_actor"])
    with waiting("worker", "", "x", 60.0) as wait:
        wait.overdue(until_written=True)
    assert Path(wait.stacks).read_text().endswith("\nworkers:\nrank 1 is in update_actor")


def test_late_waits_of_workers_are_events_of_the_controller(watched, tmp_path, events, monkeypatch):
    monkeypatch.setattr(waits, "witnesses", [lambda: "workers:"])
    monkeypatch.setattr(module, "WORKERS_S", 0.05)
    monkeypatch.setattr(watched, "_started", watched._started - 1)  # a file's time may be some ms behind the clock
    worker = Watchdog(tmp_path, "agents_pool-0")
    worker.start()
    with waiting("tool", "uid 3", "a tool", -1.0) as wait:
        pass
    kind, facts = until(lambda: events and wait.stacks and events[0])
    worker.stop()
    assert kind == "late_wait" and (facts["process"], facts["wait"], facts["owner"]) == (
        "agents_pool-0", "tool", "uid 3",
    )  # fmt: skip
    assert facts["stacks"] == wait.stacks
    time.sleep(0.2)
    assert len(events) == 1


def test_late_waits_of_workers_are_told_of_at_the_end_too(tmp_path, events, monkeypatch):
    """They may be why it ends. What their subject holds, as a model's query, does not keep them from it."""
    monkeypatch.setattr(waits, "witnesses", [lambda: "workers:"])
    controller = Watchdog(tmp_path, "controller", event=lambda kind, **facts: events.append((kind, facts)))
    controller.start()
    until(lambda: controller._looked > 0)  # the next look is far away
    monkeypatch.setattr(controller, "_started", controller._started - 1)
    worker = Watchdog(tmp_path, "agents_pool-0")
    worker.start()
    with waiting("retriever", "uid 3", "documents for 'a\nb'", -1.0) as wait:
        pass
    worker.stop()
    assert Path(wait.stacks).exists() and not events
    controller.stop("failed")
    ((kind, facts),) = events
    assert kind == "late_wait" and (facts["process"], facts["subject"]) == ("agents_pool-0", "documents for 'a\nb'")


def test_a_wait_that_does_not_end_itself_is_ended(watched, patient, tmp_path, caplog):
    """In the main thread, in a call that never comes back."""
    with pytest.raises(DeadlineError) as error, waiting("worker", "the trainer", "a lock", 0.5):
        threading.Event().wait()
    (file,) = until(lambda: dumps(tmp_path))
    assert str(error.value).startswith("a lock (the trainer) has not ended after ")
    assert str(error.value).endswith(f"(limit 0.5 s). Where all threads were is in {file}")
    until(lambda: "it does not end by itself, so it is ended: a lock (the trainer)" in caplog.text)


def test_one_that_another_waits_for_is_only_told(watched, tmp_path):
    with waiting("checkpoint", "", "writing", 0.05, is_only_told=True) as wait:
        until(lambda: wait.stacks)
        time.sleep(1.5)  # some graces
    assert wait.struck_at is None


def test_without_a_limit_nothing_is_done(watched, tmp_path):
    with waiting("engine", "", "a request", None):
        time.sleep(0.5)
    assert not dumps(tmp_path) and watched.late == 0


def test_a_coroutine_is_ended_and_the_others_go_on(watched, patient):
    async def hang(ended):
        try:
            with waiting("engine", "uid 1", "a request", 0.05):
                await asyncio.Event().wait()
        finally:
            ended.set()

    async def other(ended):
        with waiting("engine", "uid 2", "another", 60.0):
            await ended.wait()
        return "went on"

    async def both():
        ended = asyncio.Event()
        return await asyncio.gather(hang(ended), other(ended), return_exceptions=True)

    error, went_on = asyncio.run(both())
    assert isinstance(error, DeadlineError) and "a request (uid 1)" in str(error) and went_on == "went on"


def test_of_a_blocked_loop_one_error_is_enough(watched, patient):
    """Many wait in the loop that one tool blocks. They are all late, and only what blocks is ended."""

    async def blocking():
        await asyncio.sleep(0)  # until all wait
        time.sleep(1000)

    async def trajectory(i, task):
        with waiting("tool", f"uid {i}", "a tool", 0.5):
            await asyncio.wait({task})
        return i

    async def run():
        task = asyncio.create_task(blocking())
        done = await asyncio.gather(*(trajectory(i, task) for i in range(6)), return_exceptions=True)
        return task.exception(), done

    error, done = asyncio.run(run())
    assert isinstance(error, DeadlineError) and done == list(range(6))


def test_a_long_step_of_the_engine_is_no_reason_to_end_anything(watched, tmp_path):
    """It computes in the loop in which a tool is waited for, and is within its own deadline. The tool is late for that
    reason alone: its answer was there long ago."""
    watch, computed, over = Watch(60.0), [], threading.Event()

    async def step():
        await asyncio.sleep(0.1)
        with watch.over("a step of 3 sequences"):
            while not over.is_set():
                over.wait(0.01)
            computed.append(True)

    async def tool():
        await asyncio.sleep(0.2)
        return "an answer"

    async def run():
        return await asyncio.gather(step(), within(0.5, "tool x", tool()), return_exceptions=True)

    def end():
        until(lambda: watched.late)
        time.sleep(2.5)  # more than all tries
        over.set()

    threading.Thread(target=end).start()
    stepped, answer = asyncio.run(run())
    assert stepped is None and computed
    assert answer == "an answer" or isinstance(answer, ToolFailure), "the run goes on in either case"


def test_an_outer_wait_is_not_ended_while_an_inner_one_has_time(watched):
    inner = waiting("worker", "the trainer", "a call of workers", 60.0)
    with waiting("checkpoint", "the trainer", "writing", 0.2) as outer, inner:
        until(lambda: outer.stacks)
        time.sleep(2.5)
        assert outer.tries == 0


def test_around_an_event_loop_only_what_waits_in_it_is_ended(watched, patient):
    async def hang():
        with waiting("tool", "uid 3", "tool search: execute", 0.1):
            await asyncio.Event().wait()

    with waiting("worker", "the trainer", "all trajectories", 0.05) as outer:
        with pytest.raises(DeadlineError, match="tool search: execute"):
            asyncio.run(hang())
        assert outer.stacks and outer.tries == 0


def test_one_that_ends_itself_has_the_time_it_needs(watched):
    with waiting("worker", "the trainer", "a call of workers", 60.0) as wait:
        wait.overdue()
        wait.deadline = waits.ran()
        time.sleep(2.5)  # processes are asked where they are, and ended
    assert wait.tries == 0


def test_a_loop_that_does_not_run_now_is_not_blocked(watched):
    """As between two rounds: its thread does something else."""

    async def left_behind():
        with waiting("tool", "", "a tool of the last round", 60.0):
            await asyncio.Event().wait()

    async def round_of_trajectories():
        return asyncio.create_task(left_behind()), await asyncio.sleep(0.01)

    loop = asyncio.new_event_loop()
    task, _ = loop.run_until_complete(round_of_trajectories())
    (wait,) = longest()
    wait.deadline = waits.ran()
    until(lambda: wait.stacks)
    time.sleep(2.5)
    assert wait.tries == 0
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


def test_a_tool_that_the_watchdog_ends_costs_its_trajectory_alone(watched, patient):
    """In the loop of a thread of its own, where a blocked call hears of the error when it runs Python code again."""

    async def tool():
        while True:
            time.sleep(0.01)

    loop = LoopThread("agents", no_end, "agent-loops")
    with pytest.raises(ToolFailure, match="thread agent-loops is blocked here, and what waits in it cannot go on"):
        loop.run(within(0.5, "tool x", tool())).result(SOON_S)
    loop.close()


async def no_end():
    pass


def test_a_tool_that_catches_the_error_is_struck_again(watched, patient):
    caught = []

    async def tool():
        while len(caught) < 2:
            try:
                time.sleep(1000)
            except DeadlineError as error:
                caught.append(error)
        return "an answer"

    async def run():
        return await within(0.5, "tool x", tool())

    with suppress(ToolFailure):  # it was late
        asyncio.run(run())
    assert len(caught) == 2


def test_with_the_variable_nothing_is_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_WATCHDOG", "tell")
    dog = Watchdog(tmp_path, "controller")
    dog.start()
    with waiting("worker", "the trainer", "a lock", 0.1) as wait:
        until(lambda: dumps(tmp_path))
        time.sleep(2.0)
    dog.stop()
    assert wait.tries == 0


PAUSED = """
import sys, time
from burnish.tracking import watchdog
from burnish.waits import waiting
from pathlib import Path

watchdog.LOOK_S, watchdog.GRACE_S = 0.05, 0.1
watchdog.Watchdog(Path(sys.argv[1]), "controller").start()
with waiting("checkpoint", "the trainer", "writing", 10.0):
    print("begun", flush=True)
    sys.stdin.readline()
print("went on", flush=True)
"""


def test_a_process_that_stood_still_did_not_wait(tmp_path):
    command = [sys.executable, "-c", PAUSED, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
    assert process.stdout.readline() == "begun\n"
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(12.0)
    os.kill(process.pid, signal.SIGCONT)
    time.sleep(1.0)  # many looks
    assert process.communicate("\n", timeout=60)[0] == "went on\n"
    assert process.returncode == 0 and not dumps(tmp_path)


def test_old_dumps_are_removed_and_events_of_one_dump_are_few(watched, tmp_path, events, monkeypatch):
    monkeypatch.setattr(module, "KEPT", 3)
    monkeypatch.setattr(module, "SHOWN", 4)
    monkeypatch.setattr(module, "_numbers", itertools.count(5))  # the last ones have one more digit
    for i in range(10):
        with waiting("tool", f"uid {i}", "x", -1.0):
            pass
    until(lambda: watched.late == 10 and len(events) == 4)
    monkeypatch.setattr(module, "DUMP_EVERY_S", 0.0)
    other = tmp_path / "stacks/20200101-000000-1-1_agents-0.txt"
    other.write_text("of another process")
    for i in range(6):
        with waiting("tool", f"uid {i}", "x", 60.0) as wait:
            wait.overdue(until_written=True)
    assert len(dumps(tmp_path)) == 4 and other.exists() and Path(wait.stacks).exists()


STUCK = """
import sys, threading
from burnish.tracking import watchdog
from burnish.tracking.logs import configure_logging
from burnish.waits import waiting
from pathlib import Path

watchdog.LOOK_S, watchdog.GRACE_S = 0.02, 0.1
configure_logging()
event = lambda kind, **facts: Path(sys.argv[1], "events").open("a").write(f"{kind} {facts}\\n")
watchdog.Watchdog(Path(sys.argv[1]), "controller", event=event).start()

def hang():
    with waiting("checkpoint", "a thread", "a disk that hangs", 0.05):
        lock.acquire()  # in C for ever: no error reaches it

lock = threading.Lock()
lock.acquire()
thread = threading.Thread(target=hang)
thread.start()
thread.join()
"""


def test_what_nothing_can_end_ends_the_process_with_a_code_of_its_own(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", STUCK, str(tmp_path)], capture_output=True, text=True, timeout=60, cwd=Path.cwd()
    )
    assert done.returncode == EXIT_CODE == 3, done.stderr
    assert "CRITICAL" in done.stderr and "a thread waits for a disk that hangs since" in done.stderr
    first, last = dumps(tmp_path)
    assert "in hang\n" in first.read_text() and "in hang\n" in last.read_text()
    assert status(tmp_path)["state"] == "failed"
    told = Path(tmp_path, "events").read_text().splitlines()
    assert len(told) == 2 and str(last) in told[1] and "'exit_code': 3" in told[1] and "a disk that hangs" in told[1]


def test_a_disk_that_hangs_does_not_keep_it_from_acting(tmp_path, monkeypatch, caplog):
    never = threading.Event()
    for of, name in ((module, "_replace"), (Path, "exists"), (Path, "stat"), (linecache, "getline")):
        monkeypatch.setattr(of, name, lambda *_, **__: never.wait())
    monkeypatch.setattr(logging.Logger, "handle", lambda *_: never.wait())  # what writes to the same disk
    dog = Watchdog(tmp_path, "controller")
    dog.start()
    try:
        with pytest.raises(DeadlineError), waiting("disk", "me", "a file", 0.5):
            threading.Event().wait()
    finally:
        monkeypatch.undo()
        never.set()
        dog.stop()


def test_a_look_that_fails_is_told_and_the_next_one_comes(watched, monkeypatch, caplog):
    noted, failed = stacks.note, threading.Event()

    def fails_once(found):
        if not failed.is_set():
            failed.set()
            raise OSError("Stale file handle")
        return noted(found)

    monkeypatch.setattr(stacks, "note", fails_once)
    with pytest.raises(DeadlineError), waiting("disk", "me", "a file", 0.1):
        threading.Event().wait()
    assert failed.is_set()
    until(lambda: "Stale file handle" in caplog.text)


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(tmp_path, caplog):
    (tmp_path / "status").write_text("a file where the folder should be")
    caplog.set_level(logging.DEBUG)
    dog = Watchdog(tmp_path, "controller")
    dog.start()

    def said():
        return [record.levelname for record in list(caplog.records) if "cannot write" in record.getMessage()]

    until(lambda: said().count("DEBUG") > 2 and "WARNING" in said())
    assert said().count("WARNING") == 1, "by threads of their own, which may come in another order"
    with waiting("tool", "", "x", 60.0) as wait:
        wait.overdue()
    dog.stop()
    assert dumps(tmp_path)
