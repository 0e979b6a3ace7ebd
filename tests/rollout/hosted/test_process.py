"""The process that hosts a program, with one that does as it is told."""

import os
import signal
import sys
import textwrap
import threading
import time
from multiprocessing import shared_memory
from pathlib import Path
from types import SimpleNamespace

import pytest

from burnish.errors import ConfigError, EngineLost, RolloutError
from burnish.rollout.hosted.group import members
from burnish.rollout.hosted.messages import Abort, Ask, Call
from burnish.rollout.hosted.process import HostProcess

PROGRAM = textwrap.dedent(
    """
    import os, signal, subprocess, sys, time
    from multiprocessing import shared_memory
    from multiprocessing.connection import Connection
    from burnish.rollout.hosted.messages import *

    pipe = Connection(int(sys.argv[1]))
    start = pipe.recv()
    print("it begins", flush=True)
    if start.arguments.get("dies"):
        sys.exit(3)
    if problem := start.arguments.get("problem"):
        pipe.send([NotStarted(problem, start.arguments["is_config"])])
        sys.exit(0)
    child = subprocess.Popen(["sleep", "1000"])
    memory = shared_memory.SharedMemory(create=True, size=64)
    pipe.send([Ready([child.pid])])
    while not isinstance(message := pipe.recv(), Close):
        match message:
            case Call(number, "echo", arguments):
                pipe.send([Answer(number, arguments, None)])
            case Call(number, "memory", _):
                pipe.send([Answer(number, memory.name, None)])
            case Call(number, "fail", _):
                pipe.send([Answer(number, None, "it went wrong")])
            case Call(_, "silence", _):
                pass
            case Call(_, "half", _):
                os.write(int(sys.argv[1]), (1000).to_bytes(4, "big") + b"only this")
            case Call(number, "more memory", _):
                more = shared_memory.SharedMemory(create=True, size=64)
                pipe.send([Answer(number, more.name, None)])
            case Call(number, "talk", _):
                print("\\n".join(f"line {i}" for i in range(100_000)), flush=True)
                pipe.send([Answer(number, None, None)])
            case Call(_, "die", _):
                os._exit(4)
            case Call(_, "lose", _):
                pipe.send([Lost("a core is dead")])
            case Abort(number):
                pipe.send([Tokens(number, [7], [-0.5], 1, "abort")])
    """
)


@pytest.fixture
def start(tmp_path):
    """`start(**arguments)` gives the process and what was heard of it."""
    (tmp_path / "program_of_a_test.py").write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    made = []

    def begin(heartbeat_s=60.0, **arguments):
        tokens, lost = [], []
        come = threading.Event()

        def told(message):
            tokens.append(message)
            come.set()

        def gone(reason):
            lost.append(reason)
            come.set()

        process = HostProcess(
            "Thing",
            "program_of_a_test",
            arguments,
            [],
            environment,
            tmp_path / "thing.log",
            told,
            gone,
            heartbeat_s,
        )
        made.append(process)
        return process, tokens, lost, come

    yield begin
    for process in made:
        process.close()


def test_it_is_asked_answers_and_ends(start):
    process, tokens, _, come = start()
    assert process.call("echo", 1, "two") == (1, "two")
    process.send(Abort(5))
    assert come.wait(30) and tokens[0].token_ids == [7]
    with pytest.raises(RolloutError, match="Thing: it went wrong.*\n.*it begins"):
        process.call("fail")
    assert process.lost is None
    file = Path("/dev/shm") / process.call("memory")
    assert file.exists() and len(members(process.process.pid)) >= 2
    process.close()
    assert members(process.process.pid) == [] and not file.exists()
    with pytest.raises(EngineLost, match="closed"):
        process.call("echo")


def test_shared_memory_that_cannot_be_removed_keeps_nobody_waiting(start, monkeypatch):
    """Such as another user's."""
    process, _, lost, come = start()
    file, unlink = Path("/dev/shm") / process.call("memory"), Path.unlink

    def refuse(path, missing_ok=False):
        if path.parent == file.parent:
            raise PermissionError(1, "Operation not permitted")
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(EngineLost, match="its process ended with code 4"):
            process.call("die")
        assert come.wait(30) and lost and process._ended.wait(30)


@pytest.mark.parametrize(
    ("strike", "reason"),
    [
        (lambda process: os.kill(process.process.pid, signal.SIGKILL), "its process was killed by signal 9"),
        (lambda process: process.call("die"), "its process ended with code 4"),
        (lambda process: process.call("lose"), "a core is dead"),
    ],
    ids=["killed", "ended", "says so"],
)
def test_a_death_is_found_and_takes_all_with_it(start, strike, reason):
    process, _, lost, come = start()
    file = Path("/dev/shm") / process.call("memory")
    try:
        strike(process)
    except EngineLost as error:
        assert reason in str(error)
    assert come.wait(30)
    (told,) = lost
    assert reason in told and "Thing is lost" in told and told.endswith("it begins")
    assert process.lost == told
    assert members(process.process.pid) == [] and not file.exists()


def test_silence_is_found(start):
    process, _, lost, come = start(heartbeat_s=1.0)
    assert come.wait(30) and "gave no sign of life for 1 s" in lost[0]
    assert members(process.process.pid) == []


def test_one_that_stands_still_is_ended(start):
    process, _, _, come = start()
    os.kill(process.process.pid, signal.SIGSTOP)
    process._heartbeat_s = 1.0  # from now on
    assert come.wait(30)
    assert members(process.process.pid) == []


def test_one_that_stands_still_with_more_than_the_pipe_holds_is_ended(start):
    """Nobody who asks waits for it to read, and that something is half written or half read changes nothing."""
    process, _, lost, come = start()
    os.kill(process.process.pid, signal.SIGSTOP)
    for _ in range(50):
        process.send(Ask(1, [3] * 40_000, {}, 0, 1, False))
    process._heartbeat_s = 3.0  # from now on
    assert come.wait(30) and "gave no sign of life" in lost[0]
    with pytest.raises(EngineLost, match="no sign of life"):
        process.send(Abort(1))
    process.close()
    assert not any(thread.is_alive() for thread in process._threads)


def test_half_a_message_does_not_keep_a_death_from_being_found(start):
    process, _, lost, come = start()
    process.send(Call(0, "half", ()))
    process._heartbeat_s = 3.0  # from now on
    assert come.wait(30) and "gave no sign of life" in lost[0]


def test_memory_that_it_began_to_use_later_goes_too(start, monkeypatch):
    monkeypatch.setattr("burnish.rollout.hosted.process.MAPS_S", 0.0)
    process, _, _, come = start()
    file = Path("/dev/shm") / process.call("more memory")
    deadline = time.monotonic() + 30
    while file not in process._used and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.process.pid, signal.SIGKILL)  # so that nobody is left to be looked at
    assert come.wait(30)
    process.close()
    assert not file.exists()


def test_the_last_lines_of_a_long_log(start):
    process, *_ = start()
    process.call("talk")
    with pytest.raises(RolloutError) as error:
        process.call("fail")
    assert len(str(error.value).splitlines()) == 21 and str(error.value).endswith("line 99999")


def test_a_call_without_an_answer_ends_by_its_deadline(start, monkeypatch):
    process, _, _, _ = start()
    put = process._outbox.put

    def note(message):
        put(message)
        process._heartbeat_s = 0.5  # which does not count while a call is under way

    monkeypatch.setattr(process, "_outbox", SimpleNamespace(put=note, get=process._outbox.get))
    with pytest.raises(EngineLost, match="Thing did not answer silence within 2 s"):
        process.call("silence", deadline_s=2)


def test_a_start_that_fails_is_told(start):
    with pytest.raises(RolloutError, match="Thing did not start: its process ended with code 3(.|\n)*it begins"):
        start(dies=True)
    with pytest.raises(RolloutError, match="Thing did not start: no memory"):
        start(problem="no memory", is_config=False)
    with pytest.raises(ConfigError, match=r"^no such argument$"):
        start(problem="no such argument", is_config=True)


def test_shared_memory_of_others_stays(start):
    mine = shared_memory.SharedMemory(create=True, size=64)
    try:
        process, *_ = start()
        process.close()
        assert (Path("/dev/shm") / mine.name).exists()
    finally:
        mine.close()
        mine.unlink()
