"""The parent's end of a child process: `child = await ChildProcess.start(…)`, `await child.call(…)`, `child.kill()`.

Belongs to one event loop, the one it was started on; `loop_thread.LoopThread` gives owners without one a thread for it.
What ends the wait for an answer: the answer, its deadline (`TimeoutError`), or the death of the child (`ChildDied`).
"""

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from burnish.child.frames import ANSWER, CALL, CANCEL, PART, FrameBuffer, FrameTooLarge, frame
from burnish.child.output import ShownOutput
from burnish.waits import waiting

LINGER_SECONDS = 1.0  # for answers still in the pipe of a process that has ended
MAX_ANSWER_BYTES = 64 * 2**20
TAIL_LINES, TAIL_LENGTH, TAIL_BYTES = 20, 400, 2**16  # of a log in an error: lines, characters of each, and in all


class ChildDied(Exception):
    """The child ended before it answered; the text says how, and `code` is its exit status or minus its signal."""

    def __init__(self, text: str, code: int | None = None):
        super().__init__(text)
        self.code = code


class ChildKilled(Exception):
    """The child was killed because of another call."""


class ChildProcess(asyncio.SubprocessProtocol):
    """A live process. Answers are matched to calls by number, so several may be in flight.

    name       how errors name it: "the scoring process"
    on_part    called with (number, value) of every PART
    end_group  kills the child's process group, given its id; None: SIGKILL for all
    output     takes what it prints
    """

    def __init__(
        self,
        name: str,
        on_part: Callable[[int, Any], None] | None = None,
        end_group: Callable[[int], None] | None = None,
        output: ShownOutput | None = None,
    ) -> None:
        self.name = name
        self._output = output
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # done when it is reaped
        self.code: int | None = None  # its exit status or minus its signal, once it has ended
        self._usable, self._leaving = True, False
        self.pid: int
        self._on_part, self._end_group = on_part, end_group or (lambda group: os.killpg(group, signal.SIGKILL))
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last = 0
        self._frames = FrameBuffer(MAX_ANSWER_BYTES)
        self._transport: asyncio.SubprocessTransport

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stderr: IO[bytes] | ShownOutput | None = None,
        on_part: Callable[[int, Any], None] | None = None,
        end_group: Callable[[int], None] | None = None,
    ) -> Self:
        """A child that has been started. ChildDied: it could not be. `stderr` None: this process's own."""
        output, to = (stderr, subprocess.PIPE) if isinstance(stderr, ShownOutput) else (None, stderr)
        loop = asyncio.get_running_loop()
        starting = asyncio.ensure_future(
            loop.subprocess_exec(
                lambda: cls(name, on_part, end_group, output),
                *command,
                env=env,
                cwd=cwd,
                stderr=to,
                start_new_session=True,  # Ctrl-C is for the parent, and what it starts can be ended together
            )
        )
        try:
            _, child = await asyncio.shield(starting)
        except asyncio.CancelledError:  # asyncio loses track of a process whose start is cancelled halfway
            await (await starting)[1].kill()
            raise
        except OSError as error:
            raise ChildDied(f"{name} could not be started: {error}") from None
        _live.add(child)
        return child

    @property
    def alive(self) -> bool:
        """Whether it can be called: not after its end of the pipe has closed, noticed here or not yet."""
        stdin = self._transport.get_pipe_transport(0)
        if not self._usable or stdin is None or stdin.is_closing():
            return False
        poll = select.poll()
        poll.register(stdin.get_extra_info("pipe").fileno(), 0)
        return not poll.poll(0)

    async def call(
        self, payload: bytes, seconds: float | None, *, wait: tuple[str, str] | None = None, can_cancel: bool = False
    ) -> Any:
        """The answer to one call. TimeoutError, ChildDied, ChildKilled: there is none.

        seconds     until its deadline; None: the child keeps one
        wait        (kind, subject) for the register of waits
        can_cancel  when the caller gives up, tell the child; otherwise kill it, so that no other call queues behind
        """
        loop = asyncio.get_running_loop()
        number, future = self.begin(payload)
        # A plain timer instead of wait_for: answers are taken in `pipe_data_received`, which runs before timers,
        # so one that lies in the pipe when this loop wakes late is never called a time-out.
        with contextlib.ExitStack() as stack:
            entry = stack.enter_context(waiting(wait[0], "", wait[1], seconds)) if wait else None

            def expire() -> None:
                if not future.done():
                    if entry is not None:
                        entry.overdue()
                    future.set_exception(TimeoutError())

            timer = None if seconds is None else loop.call_later(seconds, expire)
            try:
                return await future
            except asyncio.CancelledError:
                if not can_cancel:
                    await self.kill()
                elif self.alive:
                    self.send(number, CANCEL)
                raise
            finally:
                if timer is not None:
                    timer.cancel()

    def begin(self, payload: bytes) -> tuple[int, "asyncio.Future[Any]"]:
        """Send a call: its number and its answer to come."""
        self._last = number = self._last + 1
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: self._waiting.pop(number, None))
        if self.gone.done():
            self._fail(self._death())
        else:
            self.send(number, CALL, payload)
        return number, future

    def send(self, number: int, kind: int, payload: bytes = b"") -> None:
        stdin = self._transport.get_pipe_transport(0)
        assert isinstance(stdin, asyncio.WriteTransport)
        stdin.write(frame(number, kind, payload))

    async def kill(self) -> None:
        """End the process and its descendants, and wait until it is reaped. Calls in flight end with ChildKilled."""
        self._usable = False
        self._fail(ChildKilled())
        self._kill_group()
        await asyncio.shield(self.gone)  # one waiter that is cancelled must not end the wait of the others

    async def close(self, seconds: float) -> None:
        """Let it exit on its own, as the end of its pipe asks it to; past `seconds`, kill it."""
        self._usable, self._leaving = False, True
        if (stdin := self._transport.get_pipe_transport(0)) is not None:
            stdin.close()
        await asyncio.wait([self.gone], timeout=seconds)
        await self.kill()

    def _fail(self, error: Exception) -> None:
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(error)

    def _kill_group(self) -> None:
        if self._transport.get_returncode() is None:
            with contextlib.suppress(ProcessLookupError):
                self._end_group(self.pid)

    # What asyncio calls:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport
        self.pid = transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        if fd == 2:
            pipe = self._transport.get_pipe_transport(2)
            assert self._output is not None and isinstance(pipe, asyncio.ReadTransport)
            return self._output.take(data, pipe)
        try:
            for number, kind, payload in self._frames.feed(data):
                try:
                    self._take(number, kind, payload)
                except (ValueError, TypeError, RecursionError) as error:  # no JSON, or not what `on_part` takes
                    self._refuse(number, error)
        except FrameTooLarge as error:
            self._refuse(*error.args)

    def _take(self, number: int, kind: int, payload: bytes) -> None:
        if kind == PART and self._on_part is not None:
            self._on_part(number, json.loads(payload))
        elif kind == ANSWER and (future := self._waiting.get(number)) is not None and not future.done():
            future.set_result(json.loads(payload))

    def _refuse(self, number: int, why: object) -> None:
        """Kill a child that sent an unreadable answer: the failure of that call, and of all where it is none of them
        (so that whoever asks again after ChildKilled does so only as often as calls fail)."""
        self._usable = False
        error, future = ChildDied(f"{self.name} sent an unreadable answer: {why}"), self._waiting.get(number)
        if future is not None and not future.done():
            future.set_exception(error)
            self._fail(ChildKilled())
        else:
            self._fail(error)
        self._kill_group()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 2:  # it may close its output
            return
        self._usable = False
        if not self._leaving:
            self._kill_group()  # a child whose pipe is closed can no longer be called, whether it lives or not

    def process_exited(self) -> None:
        # What it forked may outlive it and hold the pipes open: end its group, drop what it has not read, and after a
        # moment stop listening.
        with contextlib.suppress(ProcessLookupError):
            self._end_group(self.pid)
        stdin = self._transport.get_pipe_transport(0)
        if isinstance(stdin, asyncio.WriteTransport) and stdin.get_write_buffer_size():
            stdin.abort()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._usable = False
        self.code = self._transport.get_returncode()
        self._transport.close()
        self._fail(self._death())
        self.gone.set_result(None)

    def _death(self) -> ChildDied:
        return ChildDied(f"{self.name} died: {describe_exit(self.code)}", self.code)


_live: "weakref.WeakSet[ChildProcess]" = weakref.WeakSet()


def _release_pipes() -> None:
    """In a fork of the parent: let go of all pipes, but keep their numbers taken for objects that still name them."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for transport in (child._transport for child in _live):
        for pipe in map(transport.get_pipe_transport, (0, 1, 2)):
            file = pipe.get_extra_info("pipe") if pipe is not None else None
            if file is not None and not file.closed:
                os.dup2(nowhere, file.fileno(), inheritable=False)
    os.close(nowhere)
    _live.clear()


os.register_at_fork(after_in_child=_release_pipes)


def describe_exit(code: int | None) -> str:
    """`exit status 3`, or the signal's name."""
    if code is None or code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def log_tail(path: Path, since: int = 0) -> str | None:
    """The last lines of a log, from byte `since` on; None where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(since, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
    except OSError:
        return None
    return "\n".join(line if len(line) <= TAIL_LENGTH else line[:TAIL_LENGTH] + "…" for line in lines)
