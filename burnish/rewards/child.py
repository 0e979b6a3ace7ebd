"""One scoring process as its parent sees it: start it, ask it, kill it. Used by pool.py on the pool's event loop.

Waits for: the first answer (the function is loaded) at most START_SECONDS, each answer at most its time limit. What
ends a wait is the answer, the limit (the child is then killed with everything it started) or the child's death. A
caller that gives up ends its call: by a word to the child where that runs several, else by killing it.
"""

import asyncio
import contextlib
import json
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from typing import Any

from burnish.rewards.contract import FunctionSpec, ScoreRequest
from burnish.rewards.process import CANCEL, HEADER, HELLO, frame
from burnish.waits import Wait, waiting

START_SECONDS = 300.0  # a user's module may import large libraries from a slow disk
GRACE_SECONDS = 2.0  # an async function's limit is kept by the child itself; past this it must be blocked
LINGER_SECONDS = 1.0  # for answers still in the pipe of a process that has ended
MAX_ANSWER_BYTES = 64 * 2**20


class Failed(Exception):
    """This attempt failed; the text says why and is what the user reads."""


class TimedOut(Failed):
    """It took longer than it may."""


class NotLoaded(Failed):
    """The function cannot be loaded or called, so no other child could do better."""


class Bystander(Exception):
    """The child was killed for another call's time-out; this one has to be asked again."""


class Child(asyncio.SubprocessProtocol):
    """A live process. Answers are matched to calls by number, so several may be in flight."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = loop.create_future()  # done when the process is reaped
        self.concurrent = self.batch = False  # what `ScoreFunction` says of the function
        self.required: frozenset[str] = frozenset()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last = HELLO
        self._bytes = bytearray()
        self._usable = True
        self._transport: asyncio.SubprocessTransport
        self._pid: int

    @classmethod
    async def start(cls, spec: FunctionSpec) -> "Child":
        """A child that has loaded the function. Failed: it could not, with the reason."""
        path = os.pathsep.join(entry for entry in sys.path if entry)  # what is importable here is importable there
        environment = {**os.environ, "PYTHONPATH": path}
        command = (sys.executable, "-m", "burnish.rewards.process")
        loop = asyncio.get_running_loop()
        starting = asyncio.ensure_future(
            loop.subprocess_exec(cls, *command, stderr=None, env=environment, start_new_session=True)
        )
        try:
            _, child = await asyncio.shield(starting)
        except asyncio.CancelledError:  # asyncio loses track of a process whose start is cancelled halfway
            await (await starting)[1].kill()
            raise
        except OSError as error:
            raise Failed(f"a scoring process could not be started: {error}") from None
        try:
            hello = pickle.dumps((spec, os.environ.get("PYTHONPATH")))
            answer = await child._ask(HELLO, hello, START_SECONDS)
            if "error" in answer:
                raise NotLoaded(answer["error"])
        except BaseException as error:  # also a cancelled start: nobody else knows this child
            await child.kill()
            if isinstance(error, TimeoutError):
                raise NotLoaded(f"{spec.key}: not loaded within {START_SECONDS:g} s") from None
            if type(error) is Failed:  # it died
                raise NotLoaded(f"{spec.key}: while it was loaded, {error}") from None
            raise
        child.concurrent, child.batch = answer["concurrent"], answer["batch"]
        child.required = frozenset(answer["required"])
        return child

    @property
    def alive(self) -> bool:
        return self._usable

    async def ask(self, requests: Sequence[ScoreRequest], timeout: float) -> list[dict[str, Any]]:
        """An answer per request, {"score", "info"} or {"error"}. More than one request is for functions in the batch
        form. Failed: the call raised, took too long, returned nonsense or ended its process."""
        try:
            payload = pickle.dumps((list(requests), timeout))
        except Exception as error:  # noqa: BLE001  a row may hold anything; what cannot travel is that sample's failure
            raise Failed(f"the row cannot be sent to the scoring process: {error}") from None
        self._last = number = self._last + 1
        try:
            limit = timeout + GRACE_SECONDS if self.concurrent else timeout
            answer = await self._ask(number, payload, limit)
        except TimeoutError:
            await self.kill()
            answer = {"timed_out": True}
        except asyncio.CancelledError:
            if self.concurrent and self._usable:
                self._send(number, CANCEL)
            else:  # the next call must not queue behind one that nobody waits for
                await self.kill()
            raise
        if "timed_out" in answer:
            raise TimedOut(f"no score within {timeout:g} s")
        if "error" in answer:
            raise Failed(answer["error"])
        answers: list[dict[str, Any]] = answer["answers"]
        return answers

    async def kill(self) -> None:
        """End the process and its descendants, and wait until it is reaped. Other calls in flight are bystanders."""
        self._usable = False
        self._fail_waiting(Bystander())
        self._kill_group()
        await asyncio.shield(self.gone)  # one waiter that is cancelled must not end the wait of the others

    async def _ask(self, number: int, payload: bytes, limit: float) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        future = self._waiting[number] = loop.create_future()
        # A plain timer instead of wait_for: answers are taken in `pipe_data_received`, which runs before timers,
        # so one that lies in the pipe when this loop wakes late is never called a time-out.
        what = "its function to be loaded" if number == HELLO else f"call {number}"
        with waiting("reward", "", f"scoring process {self._pid}: {what}", limit) as wait:
            timer = loop.call_later(limit, self._expire, future, wait)
            try:
                self._send(number, payload)
                return await future
            finally:
                timer.cancel()
                self._waiting.pop(number, None)

    def _send(self, number: int, payload: bytes) -> None:
        stdin = self._transport.get_pipe_transport(0)
        assert isinstance(stdin, asyncio.WriteTransport)
        stdin.write(frame(number, payload))

    @staticmethod
    def _expire(future: asyncio.Future[dict[str, Any]], wait: Wait) -> None:
        if not future.done():
            wait.overdue()
            future.set_exception(TimeoutError())

    def _fail_waiting(self, error: Exception) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    def _kill_group(self) -> None:
        if self._transport.get_returncode() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)

    # What asyncio calls:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport
        self._pid = transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        self._bytes += data
        while len(self._bytes) >= HEADER.size:
            length, number = HEADER.unpack_from(self._bytes)
            if length > MAX_ANSWER_BYTES:
                self._fail_waiting(Failed(f"the answer is larger than {MAX_ANSWER_BYTES} bytes"))
                self._usable = False
                return self._kill_group()
            if len(self._bytes) < HEADER.size + length:
                return None
            payload = bytes(self._bytes[HEADER.size : HEADER.size + length])
            del self._bytes[: HEADER.size + length]
            self._take(number, payload)
        return None

    def _take(self, number: int, payload: bytes) -> None:
        future = self._waiting.get(number)
        if future is None or future.done():
            return
        try:
            future.set_result(json.loads(payload))
        except ValueError as error:
            future.set_exception(Failed(f"the scoring process sent an unreadable answer: {error}"))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._usable = False
        self._kill_group()  # a child whose pipe is closed can no longer be asked, whether it lives or not

    def process_exited(self) -> None:
        # What it forked may outlive it and hold the pipes open: end its group, and after a moment stop listening.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        code = self._transport.get_returncode()
        self._transport.close()
        self._fail_waiting(Failed(f"the scoring process died: {describe_exit(code)}"))
        self.gone.set_result(None)


def describe_exit(code: int | None) -> str:
    """`exit status 3`, or the signal's name."""
    if code is None or code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
