"""The watchdog: the status of a process, dumps of waits that are late, and their end."""

import asyncio
import itertools
import json
import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from burnish import waits
from burnish.tracking import watchdog as module
from burnish.tracking.failure import read_failure
from burnish.tracking.watchdog import EXIT_CODE, Watchdog
from burnish.waits import longest, waiting
from tests.processes import until

SOON_S = 30.0


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Looks often."""
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    monkeypatch.setattr(module, "STATUS_S", 0.02)
    monkeypatch.setattr(module, "WRITING_S", SOON_S)
    monkeypatch.setattr(module, "DUMP_S", SOON_S)


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


def status(folder):
    try:
        return json.loads((folder / "status" / "controller.json").read_text())
    except FileNotFoundError:
        return None


def dumps(folder):
    return sorted((folder / "stacks").glob("*.txt"))


def test_the_end_leaves_no_thread_and_no_status_of_a_run_that_never_began(tmp_path):
    dog = Watchdog(tmp_path, "x")
    dog.start()
    dog.stop()
    assert not [thread for thread in threading.enumerate() if thread.name in ("watchdog", "status")]
    assert waits.reporter is None
    folder = tmp_path / "never"
    dog = Watchdog(folder, "controller", stage=lambda: "starting")
    dog.start()
    until((folder / "status/controller.starting").exists)
    dog.stop("failed")
    assert not (folder / "status").exists()


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


def test_status_of_another_run_stays_until_this_one_begins(tmp_path):
    file, early = tmp_path / "status/controller.json", tmp_path / "status/controller.starting"
    early.parent.mkdir()
    early.write_text("of the run whose folder it is")
    file.write_text("of an earlier run")
    stage, looks = [""], []
    dog = Watchdog(tmp_path, "controller", stage=lambda: looks.append(stage[0]) or stage[0])
    dog.start()
    until(lambda: len(looks) > 3)
    assert early.read_text() == "of the run whose folder it is" and file.read_text() == "of an earlier run"
    stage[0] = "starting"
    until(lambda: early.read_text().startswith("{"))
    assert json.loads(early.read_text())["state"] == "starting" and file.read_text() == "of an earlier run"
    stage[0] = "running"
    until(lambda: not early.exists())
    assert until(lambda: status(tmp_path))["state"] == "running"
    dog.stop()


def test_late_wait_leaves_a_dump_an_event_and_a_warning(watched, tmp_path, events, caplog):
    with waiting("retriever", "uid 3", "a query", 60.0) as wait:
        wait.deadline = waits.ran()
        until(lambda: dumps(tmp_path) and events and wait.stacks)
        assert wait.late_at is not None
    (file,) = dumps(tmp_path)
    text = file.read_text()
    assert "controller, pid " in text and "late: retriever: waited " in text
    assert "thread MainThread, which waits for a query (uid 3):\n" in text and "test_watchdog.py" in text
    ((kind, facts),) = events
    assert kind == "late_wait" and (facts["wait"], facts["owner"], facts["subject"]) == (
        "retriever", "uid 3", "a query",
    )  # fmt: skip
    assert facts["stacks"] == wait.stacks == str(file)
    until(lambda: f"for a query (uid 3) (limit 60 s); where all threads are: {file}" in caplog.text)
    assert watched.late == 1


def test_dump_shows_where_tasks_wait(watched, tmp_path):
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


def test_waits_late_together_share_a_dump_that_holds_reports_of_workers(watched, tmp_path, events, monkeypatch):
    monkeypatch.setattr(waits, "worker_reports", [lambda: "workers:\nrank 1 is in update_actor"])
    for i in range(5):
        with waiting("tool", f"uid {i}", "x", -1.0):
            pass
    until(lambda: len(events) == 5)
    (file,) = dumps(tmp_path)
    assert {facts["stacks"] for _, facts in events} == {str(file)} and watched.late == 5
    assert file.read_text().endswith("\nworkers:\nrank 1 is in update_actor")


@pytest.mark.parametrize("at_the_end", [False, True])
def test_late_waits_of_workers_become_events_of_the_controller(watched, tmp_path, events, monkeypatch, at_the_end):
    """At its end too: they may be why it ends. What their subject holds does not keep them from it."""
    monkeypatch.setattr(waits, "worker_reports", [lambda: "workers:"])
    if at_the_end:
        until(lambda: watched._looked > 0)  # the next look is far away
    else:
        monkeypatch.setattr(module, "WORKERS_S", 0.05)
    monkeypatch.setattr(watched, "_started", watched._started - 1)  # a file's time may be some ms behind the clock
    worker = Watchdog(tmp_path, "agents_pool-0")
    worker.start()
    with waiting("tool", "uid 3", "documents for 'a\nb'", -1.0) as wait:
        pass
    if at_the_end:
        worker.stop()
        assert Path(wait.stacks).exists() and not events
        watched.stop("failed")
    kind, facts = until(lambda: events and wait.stacks and events[0])
    worker.stop()
    assert kind == "late_wait" and (facts["process"], facts["wait"], facts["owner"], facts["subject"]) == (
        "agents_pool-0", "tool", "uid 3", "documents for 'a\nb'",
    )  # fmt: skip
    assert facts["stacks"] == wait.stacks
    watched._report_workers(lambda kind, **facts: events.append((kind, facts)))
    assert len(events) == 1, "once"


@pytest.fixture
def looked(tmp_path, monkeypatch):
    """`looked(wait)`: which waits the watchdog ends the process for once `wait` is past its deadline and grace time."""
    dog, ended = Watchdog(tmp_path, "controller"), []
    monkeypatch.setattr(dog, "_exit", ended.append)

    def look(wait):
        ended.clear()
        dog._look(wait.deadline - 1)
        assert wait.late_at is None
        dog._look(wait.deadline)
        late_at = wait.late_at
        dog._look(late_at + module.GRACE_S * 0.9)
        assert not ended, "it has its grace time"
        dog._look(late_at + module.GRACE_S)
        return ended

    return look


def test_wait_that_does_not_end_means_that_the_process_hangs(looked):
    with waiting("worker", "the trainer", "a lock", 60.0) as wait:
        assert looked(wait) == [wait]

    async def blocking_tool():
        with waiting("tool", "uid 3", "a tool", 60.0) as tool, waiting("tool", "uid 4", "another", None):
            assert looked(tool) == [tool]

    asyncio.run(blocking_tool())


def test_wait_that_is_only_reported_or_has_no_limit_ends_nothing(tmp_path, looked, monkeypatch):
    with waiting("engine", "", "a request", None) as wait:
        Watchdog(tmp_path, "controller")._look(waits.ran() + 1e9)
        assert wait.late_at is None
    with waiting("checkpoint", "", "writing", 60.0, report_only=True) as wait:
        assert not looked(wait)
    with waits.never_ends(), waiting("worker", "the trainer", "a lock", 60.0) as wait:  # a notebook's process
        assert not looked(wait)
    monkeypatch.setenv("BURNISH_WATCHDOG", "report")
    with waiting("worker", "the trainer", "a lock", 60.0) as wait:
        assert not looked(wait)


def test_wait_whose_thread_is_busy_has_its_grace_time_afterwards(looked):
    """An engine that computes for long is no fault of a tool that answered meanwhile, nor of a wait around it."""

    async def run():
        with waiting("tool", "uid 3", "a tool", 6000.0):
            assert not looked(outer), "an event loop runs inside it"
        with waiting("tool", "uid 3", "a tool", 60.0) as tool:
            compute(tool)

    def compute(tool):
        with waiting("engine", "the rollout engine", "a step", 1800.0):
            assert not looked(tool)

    with waiting("worker", "the trainer", "a call", 60.0) as outer:
        asyncio.run(run())
    with waiting("worker", "the trainer", "a call", 60.0) as outer, waiting("disk", "", "a file", 1800.0):
        assert not looked(outer)


def test_event_loop_that_is_not_running_does_not_hang(looked):
    """As between two rounds: its thread does something else."""

    async def left_behind():
        with waiting("tool", "", "a tool of the last round", 60.0):
            await asyncio.Event().wait()

    async def round_of_trajectories():
        return asyncio.create_task(left_behind()), await asyncio.sleep(0.01)

    loop = asyncio.new_event_loop()
    task, _ = loop.run_until_complete(round_of_trajectories())
    (wait,) = longest()
    assert not looked(wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


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
import logging, sys, threading, time
from burnish.tracking import watchdog
from burnish.tracking.logs import configure_logging
from burnish.waits import waiting
from pathlib import Path

watchdog.LOOK_S, watchdog.GRACE_S = 0.02, 0.1
configure_logging()
event = lambda kind, **facts: Path(sys.argv[1], "events").open("a").write(f"{kind} {facts}\\n")
if sys.argv[2] == "disk":
    watchdog.DUMP_S = watchdog.WRITING_S = 0.2
    watchdog._replace = logging.Logger.handle = event = lambda *_, **__: time.sleep(1000)
watchdog.Watchdog(Path(sys.argv[1]), "controller", event=event).start()

def hang():
    with waiting("checkpoint", "a thread", "a disk that hangs", 0.05):
        lock.acquire()  # in C for ever

lock = threading.Lock()
lock.acquire()
thread = threading.Thread(target=hang)
thread.start()
thread.join()
"""


def run_stuck(folder, fault):
    done = subprocess.run(
        [sys.executable, "-c", STUCK, str(folder), fault], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == EXIT_CODE == 3, done.stderr
    return done.stderr


def test_process_that_hangs_exits_with_code_3_after_a_dump_even_if_the_disk_hangs(tmp_path):
    log = run_stuck(tmp_path, "none")
    assert "CRITICAL" in log and "waited 0 s for a disk that hangs (a thread) (limit 0.1 s), and it does not end" in log
    assert "This process is ended (exit code 3)" in log
    first, last = dumps(tmp_path)
    assert "in hang\n" in first.read_text() and "in hang\n" in last.read_text()
    assert status(tmp_path)["state"] == "failed"
    error = read_failure(tmp_path)
    assert (error["type"], error["phase"]) == ("DeadlineError", "checkpoint") and error["message"] in log
    lines = Path(tmp_path, "events").read_text().splitlines()
    assert (
        len(lines) == 2 and str(last) in lines[1] and "'exit_code': 3" in lines[1] and "a disk that hangs" in lines[1]
    )
    run_stuck(tmp_path / "disk", "disk")
    assert not dumps(tmp_path / "disk")


def test_look_that_fails_is_logged_and_the_next_one_comes(watched, monkeypatch, caplog):
    failed = threading.Event()
    monkeypatch.setattr(watched, "_look", lambda now: failed.set() or 1 / 0)
    until(lambda: "could not look at the waits: ZeroDivisionError" in caplog.text)
    monkeypatch.undo()
    with waiting("disk", "me", "a file", 0.01, report_only=True) as wait:
        until(lambda: wait.stacks)


def test_folder_that_cannot_be_written_is_logged_once(tmp_path, caplog):
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
