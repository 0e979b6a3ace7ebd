"""The framed child process itself: frames, calls by number, deadlines, deaths, and what a fork of the parent holds."""

import asyncio
import os
import pickle
import signal
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest

from burnish.child import output
from burnish.child.frames import HEADER, FrameBuffer, FrameTooLarge, frame
from burnish.child.process import TAIL_LINES, ChildDied, ChildKilled, ChildProcess, describe_exit, log_tail
from tests.processes import is_running, until

CHILD = textwrap.dedent(
    """
    import os, pickle, subprocess, sys, threading, time
    from burnish.child.frames import ANSWER, CANCEL, HEADER, PART, Parent
    parent = Parent(limits={"CORE": 0})
    waiting = None
    while True:
        number, kind, payload = parent.receive()
        if kind == CANCEL:
            parent.send(waiting, f"cancelled {number - waiting}")
            continue
        match pickle.loads(payload):
            case ("echo", value):
                parent.send(number, "a part", PART)
                parent.send(number, value)
            case ("wait",):
                waiting = waiting or number
            case ("exit", code):
                os._exit(code)
            case ("start",):
                parent.send(number, subprocess.Popen(["sleep", "1000"]).pid)
            case ("nonsense",):
                parent.write(HEADER.pack(3, number, ANSWER) + b"no!")
            case ("deep",):
                parent.write(HEADER.pack(200_000, number, ANSWER) + b"[" * 200_000)
            case ("forge", other):
                parent.write(HEADER.pack(2**31, other, ANSWER))
            case ("escape",):
                escaped = os.fork()
                if not escaped:
                    os.setsid()
                    time.sleep(1000)
                parent.send(number, escaped)
            case ("too much",):
                parent.write(HEADER.pack(2**31, number, ANSWER))
            case ("print",):
                print("not an answer", input if sys.stdin.read() else "")
                parent.send(number, None)
    """
)


def with_child(work, **options):
    """`await work(child)`, with its parts in `child.parts`."""

    async def main():
        parts = []
        child = await ChildProcess.start(
            "the child", [sys.executable, "-c", CHILD], on_part=lambda *part: parts.append(part), **options
        )
        child.parts = parts
        try:
            return await work(child)
        finally:
            await child.kill()

    return asyncio.run(main())


def ask(child, *message, seconds=60.0, **options):
    return child.call(pickle.dumps(message), seconds, **options)


def test_frames_come_whole_however_they_are_cut():
    sent = frame(1, 0, b"one") + frame(2**40, 3) + frame(3, 2, b"x" * 100)
    buffer = FrameBuffer(most=100)
    got = [each for i in range(len(sent)) for each in buffer.feed(sent[i : i + 1])]
    assert got == [(1, 0, b"one"), (2**40, 3, b""), (3, 2, b"x" * 100)]
    with pytest.raises(FrameTooLarge, match="larger than 100 bytes"):
        list(buffer.feed(HEADER.pack(101, 1, 0)))


def test_calls_are_answered_by_number_and_may_be_cancelled(capfd):
    async def work(child):
        first = asyncio.ensure_future(ask(child, "wait"))
        second = asyncio.ensure_future(ask(child, "wait", can_cancel=True))
        await asyncio.sleep(0)  # both are sent
        assert await ask(child, "echo", {"x": [1.5]}) == {"x": [1.5]} and child.parts == [(3, "a part")]
        second.cancel()
        assert await first == "cancelled 1"
        assert await ask(child, "print") is None

    with_child(work)
    assert capfd.readouterr() == ("", "not an answer \n")


def test_a_deadline_and_a_caller_that_gives_up():
    async def work(child):
        with pytest.raises(TimeoutError):
            await ask(child, "wait", seconds=0.01)
        assert child.alive, "that is its owner's to decide"
        other = asyncio.ensure_future(ask(child, "wait"))
        given_up = asyncio.ensure_future(ask(child, "wait"))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(ChildKilled):
            await other
        assert not child.alive

    with_child(work)


@pytest.mark.parametrize(
    ("message", "reason", "others"),
    [
        (("exit", 3), "the child died: exit status 3", ChildDied),
        (("nonsense",), "the child sent an unreadable answer", ChildKilled),  # the failure of its own call
        (("deep",), "the child sent an unreadable answer", ChildKilled),
        (("forge", 1000), "the child sent an unreadable answer", ChildDied),
        (("too much",), "the child sent an unreadable answer: it is larger than", ChildKilled),
    ],
)
def test_a_death_fails_calls_and_takes_what_it_started(message, reason, others):
    async def work(child):
        started = await ask(child, "start")
        other = asyncio.ensure_future(ask(child, "wait"))
        await asyncio.sleep(0)
        with pytest.raises(ChildDied, match=reason):
            await ask(child, *message)
        with pytest.raises(others):
            await other
        await child.gone
        assert not child.alive and until(lambda: not is_running(started))
        with pytest.raises(ChildDied, match="the child died: "):  # at once
            await ask(child, "echo", 1, seconds=None)

    with_child(work)


def test_a_descendant_that_holds_a_full_pipe_open_does_not_delay_the_end():
    async def work(child):
        escaped = await ask(child, "escape")
        os.kill(child.pid, signal.SIGSTOP)
        unread = asyncio.ensure_future(ask(child, "echo", "x" * 2**20))
        await asyncio.sleep(0)
        os.kill(child.pid, signal.SIGKILL)
        try:
            await asyncio.wait_for(asyncio.shield(child.gone), 60)
            with pytest.raises(ChildDied, match="killed by SIGKILL"):
                await unread
        finally:
            os.kill(escaped, signal.SIGKILL)

    with_child(work)


def test_a_fork_of_the_parent_does_not_keep_the_child_alive():
    async def work(child):
        fork = os.fork()
        if not fork:
            time.sleep(1000)
        await child.close(60.0)
        os.kill(fork, 9)
        os.waitpid(fork, 0)
        return child.code

    assert with_child(work) == -9, "it has killed its group at the end of its pipe"


def test_ends_and_logs_in_words(tmp_path):
    ends = {3: "exit status 3", -9: "killed by SIGKILL", -99: "killed by signal 99"}
    assert {code: describe_exit(code) for code in ends} == ends
    with pytest.raises(ChildDied, match=r"the child could not be started: .*/no/such"):
        asyncio.run(ChildProcess.start("the child", ["/no/such"]))
    (tmp_path / "log").write_text("".join(f"line {i}\n" for i in range(100)))
    assert log_tail(tmp_path / "log").splitlines() == [f"line {i}" for i in range(100 - TAIL_LINES, 100)]
    assert log_tail(tmp_path / "absent") is None


@pytest.mark.parametrize("sizes", [(4, 4), (3, 5)])
def test_what_is_not_shown_is_said_wherever_the_output_was_cut(capfd, monkeypatch, sizes):
    monkeypatch.setattr(output, "MINUTE_BYTES", 4)
    pipe = SimpleNamespace(get_extra_info=lambda _: 2, pause_reading=lambda: None, resume_reading=lambda: None)

    async def take():
        shown = output.ShownOutput("it")
        for size in sizes:
            shown.take(size * b"x", pipe)

    asyncio.run(take())
    assert capfd.readouterr().err == "xxxx\nburnish: it printed 0 MiB; the rest of this minute is not shown\n"
