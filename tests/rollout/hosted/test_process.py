"""The process that hosts a program, with one that does as it is told."""

import os
import pickle
import signal
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from burnish.child.frames import CALL
from burnish.errors import ConfigError, EngineLost, RolloutError
from burnish.rollout.hosted.keeper import members
from burnish.rollout.hosted.process import FIRST_REQUEST, HostedRequest, HostProcess
from burnish.waits import waiting
from tests.processes import until

PROGRAM = textwrap.dedent(
    """
    import os, pickle, subprocess, sys
    from multiprocessing import shared_memory
    from burnish.child.frames import ANSWER, CANCEL, HEADER, PART, Parent

    parent = Parent(kill_group=False)
    number, _, payload = parent.receive()
    _, arguments, _ = pickle.loads(payload)
    print("it begins", flush=True)
    if arguments.get("dies"):
        sys.exit(3)
    if problem := arguments.get("problem"):
        parent.send(number, {"problem": problem, "is_config": arguments["is_config"]})
        sys.exit(0)
    child = subprocess.Popen(["sleep", "1000"])
    memory = shared_memory.SharedMemory(create=True, size=64)
    parent.send(number, {"pids": [child.pid]})
    while True:
        number, kind, payload = parent.receive()
        if kind == CANCEL:
            parent.send(number, {"token_ids": [7], "log_probs": [-0.5], "version": 1, "end": "abort"}, PART)
            continue
        match pickle.loads(payload):
            case ("close",):
                break
            case ("call", "echo", arguments):
                parent.send(number, {"value": arguments})
            case ("call", "memory", _):
                parent.send(number, {"value": memory.name})
            case ("call", "fail", _):
                parent.send(number, {"problem": "it went wrong"})
            case ("call", "half", _):
                parent.write(HEADER.pack(1000, number, ANSWER) + b"only this")
            case ("call", "more memory", _):
                more = shared_memory.SharedMemory(create=True, size=64)
                parent.send(number, {"value": more.name})
            case ("call", "talk", _):
                print("\\n".join(f"line {i}" for i in range(100_000)), flush=True)
                parent.send(number, {"value": None})
            case ("call", "die", _):
                os._exit(4)
            case ("call", "lose", _):
                parent.send(0, {"lost": "a core is dead"}, PART)
    """
)


@pytest.fixture
def start(tmp_path):
    (tmp_path / "program_of_a_test.py").write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    made = []

    def begin(heartbeat_s=60.0, **arguments):
        tokens, lost = [], []
        come = threading.Event()

        def told(number, message):
            tokens.append(message)
            come.set()

        def gone(reason):
            lost.append(reason)
            come.set()

        log = tmp_path / "thing.log"
        made.append(HostProcess("Thing", "program_of_a_test", arguments, [], environment, log, told, gone, heartbeat_s))
        return made[-1], tokens, lost, come

    yield begin
    for process in made:
        process.close()


def test_process_answers_calls_and_ends(start):
    process, tokens, _, come = start()
    assert process.call("echo", 1, "two") == [1, "two"]
    process.abort(5)
    assert come.wait(30) and tokens[0].token_ids == [7]
    with pytest.raises(RolloutError, match="Thing: it went wrong.*\n.*it begins"):
        process.call("fail")
    assert process.lost is None
    process.call("talk")
    with pytest.raises(RolloutError) as error:
        process.call("fail")
    assert len(str(error.value).splitlines()) == 21 and str(error.value).endswith("line 99999")
    file = Path("/dev/shm") / process.call("memory")
    mine = shared_memory.SharedMemory(create=True, size=64)
    try:
        assert file.exists() and len(members(process.pid)) >= 2
        process.close()
        assert members(process.pid) == [] and not file.exists()
        assert (Path("/dev/shm") / mine.name).exists(), "that of others stays"
    finally:
        mine.close()
        mine.unlink()
    with pytest.raises(EngineLost, match="closed"):
        process.call("echo")


def stop_with_full_pipe(process):
    """Nobody who asks waits for it to read, and that something is half written changes nothing."""
    os.kill(process.pid, signal.SIGSTOP)
    for _ in range(50):
        process.ask(FIRST_REQUEST, HostedRequest([3] * 40_000, {}, 0, 1, False))
    process._heartbeat_s = 3.0  # from now on


def send_half(process):
    process._send(1, CALL, pickle.dumps(("call", "half", ())))
    process._heartbeat_s = 3.0  # from now on


@pytest.mark.parametrize(
    ("strike", "reason"),
    [
        (lambda process: os.kill(process.pid, signal.SIGKILL), "its process died: killed by SIGKILL"),
        (lambda process: process.call("die"), "its process died: exit status 4"),
        (lambda process: process.call("lose"), "a core is dead"),
        (lambda process: setattr(process, "_heartbeat_s", 1.0), "gave no sign of life for 1 s"),
        (stop_with_full_pipe, "gave no sign of life for 3 s"),
        (send_half, "gave no sign of life for 3 s"),
    ],
    ids=["killed", "ended", "says so", "silent", "stands still", "half a message"],
)
def test_a_death_is_found_and_takes_all_with_it(start, strike, reason, monkeypatch):
    """Shared memory that cannot be removed, such as another user's, keeps nobody waiting."""
    process, _, lost, come = start()
    file, unlink = Path("/dev/shm") / process.call("memory"), Path.unlink
    is_mine = strike is not stop_with_full_pipe

    def refuse(path, missing_ok=False):
        if path.parent == file.parent:
            raise PermissionError(1, "Operation not permitted")
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        if not is_mine:
            patch.setattr(Path, "unlink", refuse)
        try:
            strike(process)
        except EngineLost as error:
            assert reason in str(error)
        assert come.wait(30) and process._ended.wait(30)
    (told,) = lost
    # Others may have written to the log since: Python's tracker of shared memory outlives a process by a moment.
    assert reason in told and "Thing is lost" in told and "\nit begins" in told
    assert process.lost == told
    assert members(process.pid) == [] and (not is_mine or not file.exists())
    with pytest.raises(EngineLost, match=reason):
        process.abort(FIRST_REQUEST)
    # A call fails at once too, also where it was begun before the loss was known to its thread.
    with waiting("engine", "", "a test", 60.0) as wait, pytest.raises(EngineLost, match=reason):
        process._thread.run(process._call(b"", "echo", 600.0, wait)).result(60)
    process.close()
    assert not process._thread._thread.is_alive()


def test_memory_that_it_began_to_use_later_goes_too(start, monkeypatch):
    monkeypatch.setattr("burnish.rollout.hosted.process.MAPS_S", 0.0)
    process, _, _, come = start()
    file = Path("/dev/shm") / process.call("more memory")
    assert until(lambda: file in process._used)
    os.killpg(process.pid, signal.SIGKILL)  # so that nobody is left to be looked at
    assert come.wait(30)
    process.close()
    assert not file.exists()


def test_a_call_without_an_answer_ends_by_its_deadline(start):
    process, *_ = start(heartbeat_s=1.0)  # which does not count while a call is under way
    process._call_s = 3
    with pytest.raises(EngineLost, match="Thing did not answer silence within 3 s"):
        process.call("silence")


def test_a_call_in_flight_is_lost_when_another_thread_closes(start, monkeypatch):
    process, *_ = start()
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(process.call, "silence")
        assert until(lambda: process._calls)
        os.kill(process.pid, signal.SIGSTOP)
        monkeypatch.setattr("burnish.rollout.hosted.process.CLOSE_S", 0.1)
        process.close()
        with pytest.raises(EngineLost, match="closed"):
            call.result(60)


def test_a_failed_start_is_reported(start):
    with pytest.raises(RolloutError, match="Thing did not start: its process died: exit status 3(.|\n)*it begins"):
        start(dies=True)
    with pytest.raises(RolloutError, match="Thing did not start: no memory"):
        start(problem="no memory", is_config=False)
    with pytest.raises(ConfigError, match=r"^no such argument$"):
        start(problem="no such argument", is_config=True)
