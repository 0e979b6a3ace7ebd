"""math-verify behind `equal(answer, truth, seconds)`: asked in a process of its own, so that it can be killed.

sympy can compute for ever on a short text, in C code that no signal handler or thread can interrupt, and the library's
own limits work in the main thread only. So child.py runs in one long-lived process per calling process, started at the
first question, ended when an answer takes too long, and started again at the next question.

What takes too long is told by the processor time of that process, which the kernel counts: a busy machine must not make
a right answer wrong. A process that does not come to an end within `WALL_SECONDS` more is an error, not an answer.

Safe from any thread: questions wait for each other (that wait does not count against `seconds`). Safe after fork: the
new process starts its own. The process ends with its parent: it is told by the kernel when the thread that started it
ends, so that thread stays and waits for it (`_keep`).
"""

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any, NamedTuple

from burnish.errors import WorkerError

START_SECONDS = 120.0  # sympy is large, and the disk may be slow
WALL_SECONDS = 120.0  # for a question, beyond its processor time
_NAME = "the math-verify process"


class Reply(NamedTuple):
    equal: bool
    unreadable_truth: bool
    seconds: float  # of processor time


class _Algebra:
    """One live process and the two pipes to it."""

    def __init__(self) -> None:
        started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()
        threading.Thread(target=_keep, args=(started,), daemon=True, name="math-verify").start()
        process = started.get()
        if isinstance(process, OSError):
            raise WorkerError(f"{_NAME} could not be started: {process}")
        self._process = process
        self._unread = b""
        try:
            hello = self._answer(START_SECONDS)
        except BaseException:  # also KeyboardInterrupt: nobody else knows this process yet
            self.kill()
            raise
        if "failed" in hello:
            self.kill()
            raise WorkerError(f"{_NAME} could not be started: {hello['failed']}")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer. TimeoutError: none within `seconds` of processor time. WorkerError: the process died or hangs."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
        except BrokenPipeError:
            raise self._death() from None
        return self._answer(seconds + WALL_SECONDS)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self.close()

    def close(self) -> None:
        """Drop the pipes; the process, if it lives, sees its questions end and leaves."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + seconds
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while b"\n" not in self._unread:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise WorkerError(f"{_NAME} gave no answer in {seconds:g} s: it is stopped, or the machine is too busy")
            received = os.read(descriptor, 65536)
            if not received:
                raise self._death()
            self._unread += received
        line, self._unread = self._unread.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _death(self) -> Exception:
        """The error for a process that closed its pipe."""
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:
            return WorkerError(f"{_NAME} closed its pipe")
        if code == -signal.SIGPROF:  # its processor time is used up
            return TimeoutError()
        return WorkerError(f"{_NAME} died with {f'signal {-code}' if code < 0 else f'exit status {code}'}")


def equal(answer: str, truth: str, seconds: float) -> Reply:
    """Whether math-verify finds two LaTeX texts equal.

    TimeoutError: it takes more than `seconds` of processor time. WorkerError: it broke.
    """
    global _algebra
    with _lock:
        if _algebra is None or not _algebra.alive:  # it may have been killed while nobody asked
            _algebra = _Algebra()
        try:
            reply = _algebra.ask({"answer": answer, "truth": truth, "seconds": seconds}, seconds)
        except BaseException:  # also KeyboardInterrupt: an answer that nobody took would be given to the next question
            _algebra.kill()
            _algebra = None
            raise
    if "error" in reply:
        raise WorkerError(f"math-verify failed: {reply['error']}")
    return Reply(**reply)


def stop() -> None:
    """End the process, if there is one; the next question starts another."""
    global _algebra
    with _lock:
        if _algebra is not None:
            _algebra.kill()
            _algebra = None


def _keep(started: "queue.SimpleQueue[subprocess.Popen[bytes] | OSError]") -> None:
    """Start the process and wait for its end. Runs in a thread of its own, which must outlive the process."""
    command = [sys.executable, "-sBm", "burnish.rewards.equivalence.child", str(os.getpid())]
    environment = {  # nothing else: no credentials; and one order of everything that is hashed
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
        "PYTHONHASHSEED": "0",
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C.UTF-8",
    }
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            env=environment,
            start_new_session=True,  # Ctrl-C is for the parent
        )
    except OSError as error:
        started.put(error)
        return
    started.put(process)
    process.wait()


def _forget() -> None:
    """In a forked process: the math-verify process belongs to the parent, as does whoever held the lock."""
    global _algebra, _lock
    if _algebra is not None:
        _algebra.close()
    _algebra, _lock = None, threading.Lock()


_algebra: _Algebra | None = None
_lock = threading.Lock()
os.register_at_fork(after_in_child=_forget)
