"""The process that hosts a program: started, talked to, watched and ended (burnish/child), from any thread.

One thread with an event loop looks every `LOOK_S` for a sign of life; without one for `heartbeat_s` the program's
processes count as lost. While a call runs, which keeps the program from answering others, the deadline of the call
counts instead. What is lost is killed at once, reported to `on_lost`, and never comes back.
"""

import asyncio
import pickle
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.child.frames import CALL, CANCEL
from burnish.child.process import ChildDied, ChildKilled, ChildProcess, describe_exit, log_tail
from burnish.errors import ConfigError, EngineLost, RolloutError
from burnish.loop_thread import LoopThread
from burnish.rollout.hosted.keeper import KEEPER, end_group, shared_files
from burnish.waits import Wait, ran, waiting

BEAT_S = 10.0  # between two signs of life, at most
BEATS = 6  # that are asked for until one is missed, at least
START_S = 1800.0  # for the program to be ready; a large model that is compiled takes long
CALL_S = 600.0  # for anything that is not a request, at least
CLOSE_S = 20.0  # for the program to exit on its own
LOOK_S = 0.5
MAPS_S = 5.0  # between two looks at the shared memory that it uses
FIRST_REQUEST = 2**32  # requests are numbered from here, other calls from 1
NEWS = 0  # the number of what the host says without being asked: {"alive"} or {"lost": why}
CLOSED = "the rollout engine was closed"


@dataclass(frozen=True)
class HostedRequest:
    """One request. `sampling` are the program's own arguments, without those that change on the way."""

    prompt_ids: list[int]
    sampling: dict[str, Any]
    seed: int
    limit: int
    streams: bool  # tokens as they come, or all at the end


@dataclass(frozen=True)
class HostedTokens:
    """Tokens of one request, or why it failed."""

    token_ids: list[int]
    log_probs: list[float]
    version: int
    end: str | None = None  # why no more come; None: more may come
    problem: str | None = None  # it failed


class HostProcess:
    """`label` names the program in errors and `module` is its host. `leftovers` are folders that shall not outlive this
    process; where only the program ends, they stay. `lost` is why it can serve no more; `pid` is the host's, `pids` are
    those of the processes that compute."""

    def __init__(
        self,
        label: str,
        module: str,
        arguments: dict[str, Any],
        leftovers: list[Path],
        environment: dict[str, str],
        log_file: Path,
        on_tokens: Callable[[int, HostedTokens], None],
        on_lost: Callable[[str], None],
        heartbeat_s: float,
    ):
        self.lost: str | None = None
        self.log_file = log_file
        self._label, self._on_tokens, self._on_lost, self._heartbeat_s = label, on_tokens, on_lost, heartbeat_s
        self._call_s = max(CALL_S, 2 * heartbeat_s)  # new weights wait for the step that runs
        self._lock = threading.Lock()  # for `lost` and `_closing`; whoever has it waits for nothing
        self._calls = 0  # running
        self._closing = False
        self._ended = threading.Event()  # it is lost, its processes have ended, and all callers know
        self._used: set[Path] = set()  # shared memory: of processes that died it cannot be seen any more
        self._last_lines = ""  # of the log, when its end began
        self._heard: float | None = None  # when there was the last sign of life; None: it is not ready yet
        self._child: ChildProcess | None = None
        self._thread = LoopThread(label, self._end_child, label, "engine", close_s=3 * CLOSE_S)
        KEEPER.add(*leftovers)
        command = [sys.executable, "-P", "-m", module]
        try:
            with waiting("engine", "", f"{label} to start", START_S) as wait:
                self.pids = self._thread.run(self._begin(command, environment, arguments, wait)).result()
        except BaseException:
            self._closing = True
            self._thread.close()
            raise

    async def _begin(
        self, command: list[str], environment: dict[str, str], arguments: dict[str, Any], wait: Wait
    ) -> list[int]:
        self._loop = asyncio.get_running_loop()
        with self.log_file.open("ab") as output:
            self._child = child = await ChildProcess.start(
                "its process", command, env=environment, stderr=output, on_part=self._take, end_group=self._kill_group
            )
        self.pid = child.pid
        KEEPER.add(self.pid)
        child.gone.add_done_callback(lambda _: self._lose(f"its process died: {describe_exit(child.code)}"))
        self._watching = self._loop.create_task(self._watch())
        beat_s = min(BEAT_S, self._heartbeat_s / BEATS)
        try:
            first = await child.call(pickle.dumps(("start", arguments, beat_s)), START_S)
        except TimeoutError:
            wait.overdue()
            raise RolloutError(f"{self._label} was not ready within {START_S:g} s{self._tail()}") from None
        except ChildDied as death:
            raise RolloutError(f"{self._label} did not start: {death}{self._tail()}") from None
        if (problem := first.get("problem")) is not None:
            if first["is_config"]:
                raise ConfigError(problem)
            raise RolloutError(f"{self._label} did not start: {problem}{self._tail()}")
        self._note_memory()
        self._heard = ran()
        pids: list[int] = first["pids"]
        return pids

    def ask(self, number: int, request: HostedRequest) -> None:
        """Begin a request. Returns at once. EngineLost where nobody is there to read it."""
        self._send(number, CALL, pickle.dumps(("ask", request)))

    def abort(self, number: int) -> None:
        """End a request; it is answered with what it has, unless it has ended."""
        self._send(number, CANCEL)

    def call(self, method: str, *arguments: Any) -> Any:
        """What a method `do_…` of the host gives. RolloutError where it fails, EngineLost where it does not answer."""
        self._refuse_if_gone()
        with waiting("engine", "", f"{method} of {self._label}", self._call_s) as wait:
            payload = pickle.dumps(("call", method, arguments))
            answer = self._thread.run(self._call(payload, method, self._call_s, wait))
            try:
                return answer.result()
            except CancelledError:  # another thread closes it, or has found it lost and replaces it
                raise EngineLost(self.lost or CLOSED) from None
            finally:
                answer.cancel()  # should somebody interrupt the wait

    async def _call(self, payload: bytes, method: str, seconds: float, wait: Wait) -> Any:
        assert self._child is not None
        self._calls += 1
        try:
            answer = await self._child.call(payload, seconds, can_cancel=True)
        except TimeoutError:
            wait.overdue()
            self._lose(f"{self._label} did not answer {method} within {seconds:g} s")
            raise EngineLost(self.lost) from None
        except (ChildDied, ChildKilled) as error:
            self._lose(str(error))
            raise EngineLost(self.lost) from None
        finally:
            self._calls -= 1
        self._heard = ran()
        if (problem := answer.get("problem")) is not None:
            raise RolloutError(f"{self._label}: {problem}{self._tail()}")
        return answer["value"]

    def close(self) -> None:
        """End the program and its processes; by force where they do not end by themselves."""
        with self._lock:
            self._closing, is_well = True, self.lost is None
        if is_well:
            self._note_memory()
            self._thread.run(self._ask_to_end()).result()
        self._lose(CLOSED)
        self._ended.wait(2 * CLOSE_S)  # another thread may be at it
        self._thread.close()

    async def _ask_to_end(self) -> None:
        assert self._child is not None
        self._child.send(0, CALL, pickle.dumps(("close",)))
        await asyncio.wait([self._child.gone], timeout=CLOSE_S)

    def _send(self, number: int, kind: int, payload: bytes = b"") -> None:
        self._refuse_if_gone()
        assert self._child is not None
        with suppress(RuntimeError):  # the loop is closed: it is lost, which the caller learns
            self._loop.call_soon_threadsafe(self._child.send, number, kind, payload)

    def _refuse_if_gone(self) -> None:
        with self._lock:
            if self.lost is not None or self._closing:
                raise EngineLost(self.lost or CLOSED)

    # On the thread of the loop

    async def _watch(self) -> None:
        looked = 0.0
        while not self._ended.is_set():
            await asyncio.sleep(LOOK_S)
            if time.monotonic() - looked > MAPS_S:
                self._note_memory()
                looked = time.monotonic()
            if self._heard is not None and not self._calls and ran() - self._heard > self._heartbeat_s:
                self._lose(f"{self._label} gave no sign of life for {self._heartbeat_s:g} s")

    def _take(self, number: int, value: Any) -> None:
        self._heard = ran()
        if number != NEWS:
            self._on_tokens(number, HostedTokens(**value))
        elif "lost" in value:
            self._lose(value["lost"])

    async def _end_child(self) -> None:
        if self._child is not None:
            self._watching.cancel()
            await self._child.kill()

    def _note_memory(self) -> None:
        self._used |= shared_files(self.pid)
        KEEPER.add(*self._used)

    def _lose(self, reason: str) -> None:
        """In whichever thread found out first; the others continue at once."""
        tail = self._last_lines or self._tail()
        with self._lock:
            if self.lost is not None:
                return
            self.lost = CLOSED if self._closing else f"{self._label} is lost: {reason}{tail}"
        try:
            self._kill_group(self.pid)
        finally:
            self._on_lost(self.lost)
            self._ended.set()

    def _kill_group(self, group: int) -> None:
        """All of its processes, also such as stand still. Others may write to the log as they end."""
        self._last_lines = self._last_lines or self._tail()
        end_group(group, self._used)
        KEEPER.remove(group, *self._used)

    def _tail(self) -> str:
        lines = log_tail(self.log_file)
        return "" if lines is None else f". The last lines of {self.log_file}:\n{lines}"
