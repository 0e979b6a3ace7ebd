"""The process that has a program in it: `python -m burnish.rollout.vllm.host DESCRIPTOR`, started by `process`.

One event loop does everything here. A thread reads the pipe and hands over what it says; with nothing to do the loop
waits for it, for the program's tokens and for the time of the next sign of life. When the pipe ends, the owner is dead:
this process ends too, and `keeper` puts an end to what the program has started.

A request runs in parts. New weights end the part that runs, with the tokens it has; when they are there, the next part
goes on after these. So keys and values of old weights are never used with new ones, and each part has one version.
"""

import asyncio
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from multiprocessing.connection import Connection
from typing import Any, ClassVar

from burnish.errors import ConfigError
from burnish.rollout.hosted.messages import (
    Abort,
    Alive,
    Answer,
    Ask,
    Call,
    Close,
    Failed,
    Lost,
    NotStarted,
    Ready,
    Start,
    Tokens,
)

AGAIN_S = 0.2  # before a part that did not end is told to end once more: it may not have begun


class Host(ABC):
    dead: ClassVar[tuple[type[BaseException], ...]] = ()  # errors by which the program says that it is no more

    def __init__(self, connection: Connection, start: Start):
        self._connection, self._start = connection, start
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self._is_open = False  # there are whole weights, so parts may begin
        self._stirs = asyncio.Condition()  # it was opened, or a request is not wanted any more
        self._version = 0
        self._parts: dict[str, asyncio.Task[str]] = {}  # that run, by the program's request id
        self._told_to_end: set[str] = set()  # of these
        self._unwanted: set[int] = set()  # requests that shall end
        self._asked: set[int] = set()  # requests without an end
        self._tasks: set[asyncio.Task[None]] = set()
        self._outbox: list[Any] = []

    # What is particular about a program

    @abstractmethod
    async def begin(self, arguments: dict[str, Any]) -> list[int]:
        """Start the program; the process ids of what computes. ConfigError where the arguments are to blame."""

    @abstractmethod
    async def sign_of_life(self) -> None:
        """Return when all processes of the program have answered."""

    @abstractmethod
    def tokens(self, name: str, ask: Ask, done: list[int]) -> AsyncIterator[tuple[list[int], list[float], str | None]]:
        """Go on after `done`: token ids and their log-probs as they come, and why no more do ("abort": told to end)."""

    @abstractmethod
    async def end_parts(self, names: list[str]) -> None:
        """Tell the program to end requests, which it may not know, or no longer."""

    @abstractmethod
    async def load(self, files: list[str]) -> list[dict[str, Any]]:
        """Take over weights: what each worker says of them."""

    @abstractmethod
    async def forget(self) -> bool:
        """Drop what was computed with old weights; whether it could be."""

    @abstractmethod
    async def log_probs_of(self, token_ids: list[int]) -> list[float]:
        """Of each token after the first, at temperature 1."""

    @abstractmethod
    async def end(self) -> None:
        """End the program and its processes."""

    async def run(self) -> None:
        threading.Thread(target=self._listen, name="pipe", daemon=True).start()
        try:
            pids = await self.begin(dict(self._start.arguments))
        except Exception as error:  # noqa: BLE001 (whatever it is, the owner tells it)
            is_config = isinstance(error, ConfigError)
            self._send([NotStarted(str(error) if is_config else f"{type(error).__name__}: {error}", is_config)])
            return
        self._send([Ready(pids)])
        self._do(self._beat())
        await self._closed.wait()
        await self.end()

    # What the pipe says

    def _listen(self) -> None:
        """In a thread of its own, which also ends this process where its loop hangs."""
        try:
            while True:
                self._loop.call_soon_threadsafe(self._heard, self._connection.recv())
        except (EOFError, OSError):
            os._exit(1)

    def _heard(self, message: Ask | Abort | Call | Close) -> None:
        match message:
            case Close():
                self._closed.set()
            case Ask():
                self._asked.add(message.number)
                self._do(self._answer(message))
            case Abort(number) if number in self._asked:
                self._unwanted.add(number)
                self._do(self._abort([name for name in self._parts if _number(name) == number]))
            case Call():
                self._do(self._call(message))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _say(self, message: Any) -> None:
        """Messages of one pass of the event loop go together."""
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(message)

    def _flush(self) -> None:
        messages, self._outbox = self._outbox, []
        self._send(messages)

    def _send(self, messages: list[Any]) -> None:
        try:
            self._connection.send(messages)
        except OSError:
            os._exit(1)

    def _lost(self, error: BaseException) -> None:
        self._say(Lost(str(error) or type(error).__name__))

    async def _beat(self) -> None:
        try:
            while True:
                await self.sign_of_life()
                self._say(Alive())
                await asyncio.sleep(self._start.beat_s)
        except self.dead as error:
            self._lost(error)
        except Exception as error:  # noqa: BLE001 (the owner tells it)
            self._say(Lost(f"it could not be asked for a sign of life: {type(error).__name__}: {error}"))

    # Requests

    async def _answer(self, ask: Ask) -> None:
        try:
            await self._all_parts(ask)
        except self.dead as error:
            self._lost(error)
        except Exception as error:  # noqa: BLE001 (it is told to whoever asked)
            cause = error.__cause__ or error
            self._say(Failed(ask.number, f"{type(cause).__name__}: {cause}"))
        finally:
            self._asked.discard(ask.number)
            self._unwanted.discard(ask.number)

    async def _all_parts(self, ask: Ask) -> None:
        done: list[int] = []
        end = "abort"
        while end == "abort" and len(done) < ask.limit:
            async with self._stirs:
                await self._stirs.wait_for(lambda: self._is_open or ask.number in self._unwanted)
            if ask.number in self._unwanted:
                break
            name = f"{ask.number}/{len(done)}/{self._version};"  # none is the beginning of another
            part = self._parts[name] = self._loop.create_task(self._part(name, ask, done))
            try:
                end = await part
                if end == "abort" and name not in self._told_to_end:
                    raise RuntimeError(f"it was ended after {len(done)} tokens although nobody asked for that")
            finally:
                del self._parts[name]
                self._told_to_end.discard(name)
        self._say(Tokens(ask.number, [], [], self._version, end if len(done) < ask.limit else "length"))

    async def _part(self, name: str, ask: Ask, done: list[int]) -> str:
        """Go on after `done` until the program ends it; why it did."""
        version, end = self._version, "abort"
        async for token_ids, log_probs, why in self.tokens(name, ask, list(done)):
            if token_ids:
                done += token_ids
                self._say(Tokens(ask.number, token_ids, log_probs, version, None))
            end = why or end
        return end

    async def _abort(self, names: list[str]) -> None:
        """A part that has not reached the program yet is not known there, hence more than once."""
        await self._stir()
        while left := [name for name in names if name in self._parts]:
            parts = [self._parts[name] for name in left]
            self._told_to_end.update(left)
            await self.end_parts(left)
            await asyncio.wait(parts, timeout=AGAIN_S)
            await asyncio.sleep(0)  # those who wait for them take them out

    # Everything else

    async def _call(self, call: Call) -> None:
        value, problem = None, None
        try:
            value = await getattr(self, f"do_{call.method}")(*call.arguments)
        except self.dead as error:
            self._lost(error)
        except Exception as error:  # noqa: BLE001 (it is told to whoever asked)
            problem = f"{type(error).__name__}: {error}"
        self._say(Answer(call.number, value, problem))

    async def do_load(self, files: list[str], version: int) -> list[dict[str, Any]]:
        """Take over weights; what each worker says of them. Where it fails, no part begins until it succeeds.

        Waits for parts to end and for their memory to be free: how long is up to the owner, who has a deadline for it.
        """
        self._is_open = False
        while self._parts:
            await self._abort(list(self._parts))
        said = await self.load(files)
        while not await self.forget():
            await asyncio.sleep(AGAIN_S)
        self._version = version
        return said

    async def do_open(self) -> None:
        """The weights are what they should be: generate with them."""
        self._is_open = True
        await self._stir()

    async def _stir(self) -> None:
        async with self._stirs:
            self._stirs.notify_all()

    async def do_sleep(self) -> None:  # noqa: B027 (not every program can)
        """Where a program can give memory back, its host does."""

    async def do_wake(self) -> None:  # noqa: B027
        """Undo what `do_sleep` did."""

    async def do_log_probs_of(self, token_ids: list[int]) -> list[float]:
        return await self.log_probs_of(token_ids)


def _number(name: str) -> int:
    return int(name.split("/")[0])


def run(host: type[Host]) -> None:
    """The whole life of a host's process."""
    connection = Connection(int(sys.argv[1]))
    start = connection.recv()

    async def live() -> None:
        await host(connection, start).run()

    asyncio.run(live())
