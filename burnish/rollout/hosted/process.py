"""The process that hosts a program: started, talked to, watched and ended.

Three threads, none of which anybody else waits for:

- one writes to the pipe what `send` and `call` put into a queue, so that no caller waits for a program to read it;
- one reads the pipe: tokens go to `on_tokens`, answers to whoever waits for them in `call`. It ends with the pipe;
- one looks every `LOOK_S` whether the process lives. All of the program's processes are asked for a sign of life time
  and again; without one for `heartbeat_s` they count as lost. While a call is under way, which keeps the program from
  answering others, the deadline of the call counts instead.

What is lost is ended at once by force, which also ends a write or a read that hangs. It is told to `on_lost`, and never
comes back. Where this process itself ends first, `keeper` ends the program and removes its files.
"""

import itertools
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from burnish.errors import ConfigError, EngineLost, RolloutError
from burnish.rollout.hosted.group import end_group, shared_files
from burnish.rollout.hosted.keeper import KEEPER
from burnish.rollout.hosted.messages import Answer, Call, Close, Failed, Lost, NotStarted, Ready, Start, Tokens
from burnish.waits import ran, waiting

BEAT_S = 10.0  # between two signs of life, at most
BEATS = 6  # that are asked for until one is missed, at least
START_S = 1800.0  # for the program to be ready; a large model that is compiled takes long
CALL_S = 600.0  # for anything that is not a request, at least
CLOSE_S = 20.0  # for the program to end by itself
EXIT_S = 5.0  # for a process whose pipe has ended to be gone
LOOK_S = 0.5
MAPS_S = 5.0  # between two looks at the shared memory that it uses
LINES, LOG_BYTES = 20, 2**16  # of the log in an error
CLOSED = "the rollout engine was closed"

log = logging.getLogger(__name__)


class HostProcess:
    """`label` names the program in errors and `module` is its host. `leftovers` are folders that shall not outlive this
    process; where only the program ends, they stay. `lost` is why it can serve no more; `pids` are of the processes
    that compute."""

    def __init__(
        self,
        label: str,
        module: str,
        arguments: dict[str, Any],
        leftovers: list[Path],
        environment: dict[str, str],
        log_file: Path,
        on_tokens: Callable[[Tokens | Failed], None],
        on_lost: Callable[[str], None],
        heartbeat_s: float,
    ):
        self.lost: str | None = None
        self._label = label
        self.log_file = log_file
        self._on_tokens, self._on_lost, self._heartbeat_s = on_tokens, on_lost, heartbeat_s
        self._call_s = max(CALL_S, 2 * heartbeat_s)  # new weights wait for the step that runs
        self._lock = threading.Lock()  # for `lost`, `_closing` and the calls; whoever has it waits for nothing
        self._outbox: SimpleQueue[Any] = SimpleQueue()  # None: no more
        self._calls: dict[int, Future[Any]] = {}
        self._numbers = itertools.count()
        self._closing = False
        self._ended = threading.Event()  # it is lost, its processes are gone, and everybody has been told
        self._used: set[Path] = set()  # of processes that die by themselves, it cannot be seen any more
        self._looked = 0.0
        KEEPER.add(*leftovers)
        self._pipe, theirs = Pipe()
        with log_file.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # so that all its processes can be ended together
            )
        theirs.close()
        KEEPER.add(self.process.pid)
        beat_s = min(BEAT_S, heartbeat_s / BEATS)
        try:
            self.pids = self._begin(Start(arguments, beat_s))
        except BaseException:
            self._kill()
            self._pipe.close()
            raise
        self._note_memory()
        self._heard = ran()
        self._reader = threading.Thread(target=self._read, name=label, daemon=True)
        self._threads = [
            self._reader,
            threading.Thread(target=self._write, name=f"{label}, written to", daemon=True),
            threading.Thread(target=self._watch, name=f"{label}, watched", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _begin(self, start: Start) -> list[int]:
        self._pipe.send(start)
        deadline = time.monotonic() + START_S
        with waiting("engine", "", f"{self._label} to start", START_S) as wait:
            while not self._pipe.poll(LOOK_S):
                self._look_at_memory()
                if self.process.poll() is not None:
                    raise RolloutError(f"{self._label} did not start: {self._ending()}{self._tail()}")
                if time.monotonic() > deadline:
                    wait.overdue()
                    raise RolloutError(f"{self._label} was not ready within {START_S:g} s{self._tail()}")
        try:
            (first,) = self._pipe.recv()
        except (EOFError, OSError):
            raise RolloutError(f"{self._label} did not start: {self._ending()}{self._tail()}") from None
        if isinstance(first, NotStarted):
            if first.is_config:
                raise ConfigError(first.problem)
            raise RolloutError(f"{self._label} did not start: {first.problem}{self._tail()}")
        assert isinstance(first, Ready), f"{first} is no answer to Start"
        return first.pids

    def send(self, message: Any) -> None:
        """Returns at once. EngineLost where nobody is there to read it."""
        with self._lock:
            self._refuse_if_gone()
            self._outbox.put(message)

    def call(self, method: str, *arguments: Any, deadline_s: float | None = None) -> Any:
        """What a method of the host gives. RolloutError where it fails, EngineLost where it does not answer."""
        number, answer = next(self._numbers), Future[Any]()
        seconds = self._call_s if deadline_s is None else deadline_s
        with self._lock:
            self._refuse_if_gone()
            self._calls[number] = answer
            self._outbox.put(Call(number, method, arguments))
        try:
            with waiting("engine", "", f"{method} of {self._label}", seconds) as wait:
                try:
                    return answer.result(seconds)
                except TimeoutError:
                    wait.overdue()
                    self._lose(f"{self._label} did not answer {method} within {seconds:g} s")
                    raise EngineLost(self.lost) from None
        finally:
            with self._lock:
                self._calls.pop(number, None)

    def close(self) -> None:
        """End the program and its processes; by force where they do not end by themselves."""
        if self.lost is None:
            self._note_memory()
        with self._lock:
            self._closing = True
            is_well = self.lost is None
            self._outbox.put(Close())
        if is_well:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(CLOSE_S)
        self._lose(CLOSED)
        self._ended.wait(2 * CLOSE_S)  # another thread may be at it
        for thread in self._threads:
            thread.join(CLOSE_S)
        self._pipe.close()

    def _refuse_if_gone(self) -> None:
        if self.lost is not None:
            raise EngineLost(self.lost)
        if self._closing:
            raise EngineLost(CLOSED)

    # What the threads do

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self._pipe.send(message)
            except OSError:
                return  # nobody reads any more, which the others find

    def _read(self) -> None:
        try:
            while True:
                for message in self._pipe.recv():
                    self._take(message)
        except (EOFError, OSError):
            self._lose(self._ending())

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._look_at_memory()
            if self.process.poll() is not None:
                self._reader.join(LOOK_S)  # should it have said why
                self._lose(self._ending())
            elif not self._calls and ran() - self._heard > self._heartbeat_s:
                self._lose(f"{self._label} gave no sign of life for {self._heartbeat_s:g} s")

    def _look_at_memory(self) -> None:
        if time.monotonic() - self._looked > MAPS_S:
            self._note_memory()
            self._looked = time.monotonic()

    def _note_memory(self) -> None:
        self._used |= shared_files(self.process.pid)
        KEEPER.add(*self._used)

    def _take(self, message: Any) -> None:
        self._heard = ran()
        match message:
            case Tokens() | Failed():
                self._on_tokens(message)
            case Answer():
                with self._lock:
                    answer = self._calls.get(message.number)
                if answer is not None and message.problem is not None:
                    _fail(answer, RolloutError(f"{self._label}: {message.problem}{self._tail()}"))
                elif answer is not None:
                    with suppress(InvalidStateError):  # it is lost meanwhile
                        answer.set_result(message.value)
            case Lost():
                self._lose(message.reason)

    def _lose(self, reason: str) -> None:
        """In whichever thread found out first; the others go on at once."""
        tail = self._tail()
        with self._lock:
            if self.lost is not None:
                return
            self.lost = CLOSED if self._closing else f"{self._label} is lost: {reason}{tail}"
            calls = list(self._calls.values())
        try:
            self._kill()
        finally:
            self._cut()
            for answer in calls:
                _fail(answer, EngineLost(self.lost))
            self._on_lost(self.lost)
            self._ended.set()

    def _kill(self) -> None:
        """All of its processes, also such as stand still."""
        end_group(self.process.pid, self._used)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(CLOSE_S)
        KEEPER.remove(self.process.pid, *self._used)

    def _cut(self) -> None:
        """End the threads that read and write. Not before the host is gone, which would take it for its owner's end."""
        self._outbox.put(None)
        with suppress(OSError), socket.socket(fileno=os.dup(self._pipe.fileno())) as pipe:
            pipe.shutdown(socket.SHUT_RDWR)

    def _ending(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(EXIT_S)
            return f"its process ended with code {code}" if code >= 0 else f"its process was killed by signal {-code}"
        return "its process went silent"

    def _tail(self) -> str:
        with suppress(OSError), self.log_file.open("rb") as file:
            file.seek(max(0, self.log_file.stat().st_size - LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-LINES:]
            return f". The last lines of {self.log_file}:\n" + "\n".join(lines)
        return ""


def _fail(answer: "Future[Any]", error: RolloutError) -> None:
    with suppress(InvalidStateError):  # it has come meanwhile
        answer.set_exception(error)
