"""math-verify behind `equal(answer, truth, seconds)`: asked in a separate process (child.py), so that it can be killed.

sympy can compute for ever on a short text, in C code that no signal handler or thread can interrupt. So there is one
long-lived process per calling process, started at the first question, killed when an answer takes too long. That is
decided by the processor time of the process: a busy machine must not make a right answer wrong. A process that has no
answer within `WALL_SECONDS` more is an error, not an answer. Safe from any thread (questions wait for each other) and
after fork (the new process starts its own).
"""

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from burnish.child.process import ChildDied, ChildKilled, ChildProcess
from burnish.errors import WorkerError
from burnish.loop_thread import LoopThread

START_SECONDS = 120.0  # sympy is large, and the disk may be slow
WALL_SECONDS = 120.0  # for a question, beyond its processor time
_NAME = "the math-verify process"


class MathVerifyAnswer(NamedTuple):
    equal: bool
    unreadable_truth: bool
    seconds: float  # of processor time


class _MathVerify:
    """The process, and the thread that it belongs to: the kernel ends it when that thread ends."""

    def __init__(self) -> None:
        self.child: ChildProcess | None = None
        self.thread = LoopThread("math-verify", self.kill, "math-verify", "reward")
        self._turn = asyncio.Lock()
        self._begun = False  # the child has read the question

    async def ask(self, question: dict[str, Any], seconds: float) -> Any:
        async with self._turn:
            for is_last in (False, True):
                if self.child is None or not self.child.alive:  # it may have been killed while nobody asked
                    self.child = await _started(self._note_begin)
                self._begun = False
                try:
                    return await self.child.call(pickle.dumps(question), seconds + WALL_SECONDS)
                except TimeoutError:
                    await self.child.kill()
                    raise _silent(seconds + WALL_SECONDS) from None
                except ChildDied as death:
                    if death.code == -signal.SIGPROF:  # its processor time is used up
                        raise TimeoutError from None
                    if self._begun or is_last:  # else it was killed just before: ask another one
                        raise WorkerError(str(death)) from None
                except ChildKilled:
                    raise WorkerError(f"{_NAME} was stopped") from None

    def _note_begin(self, number: int, value: Any) -> None:
        self._begun = True

    async def kill(self) -> None:
        if self.child is not None:
            await self.child.kill()


async def _started(on_part: Callable[[int, Any], None]) -> ChildProcess:
    environment = {  # nothing else: no credentials; and one order of everything that is hashed
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
        "PYTHONHASHSEED": "0",
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C.UTF-8",
    }
    command = [sys.executable, "-sBm", "burnish.rewards.equivalence.child"]
    try:
        child = await ChildProcess.start(_NAME, command, env=environment, cwd="/", on_part=on_part)
        hello = await child.call(pickle.dumps(None), START_SECONDS)
    except TimeoutError:
        await child.kill()
        raise _silent(START_SECONDS) from None
    except ChildDied as death:
        raise WorkerError(str(death)) from None
    if "failed" in hello:
        await child.kill()
        raise WorkerError(f"{_NAME} could not be started: {hello['failed']}")
    return child


def _silent(seconds: float) -> WorkerError:
    return WorkerError(f"{_NAME} gave no answer in {seconds:g} s: it is stopped, or the machine is too busy")


def equal(answer: str, truth: str, seconds: float) -> MathVerifyAnswer:
    """TimeoutError: it takes more than `seconds` of processor time. WorkerError: it broke."""
    question = {"answer": answer, "truth": truth, "seconds": seconds}
    asked = _process.thread.run(_process.ask(question, seconds))
    try:
        reply = asked.result()
    except BaseException:  # also KeyboardInterrupt: nobody waits for the answer any more
        asked.cancel()
        raise
    if "error" in reply:
        raise WorkerError(f"math-verify failed: {reply['error']}")
    return MathVerifyAnswer(**reply)


def stop() -> None:
    """End the process, if there is one; the next question starts another."""
    if _process.child is not None:
        _process.thread.run(_process.kill()).result()


def _forget() -> None:
    """In a forked process: the math-verify process belongs to the parent."""
    global _process
    _process = _MathVerify()


_process = _MathVerify()
os.register_at_fork(after_in_child=_forget)
