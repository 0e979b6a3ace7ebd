"""The process that has a program in it: `python -m burnish.rollout.vllm.host`, started by `process`.

Consumes calls (burnish/child): ("start", arguments, beat_s) first, then ("ask", HostedRequest), answered by PARTs,
("call", method, arguments), answered once, and ("close",). When the pipe ends, the owner is dead: this process ends
too, and `keeper` puts an end to what the program has started.

A request runs in parts. New weights end the part that runs, with the tokens it has; when they are there, the next part
continues after these. So keys and values of old weights are never used with new ones, and each part has one version.
"""

import asyncio
import pickle
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from typing import Any, ClassVar

from burnish.child.frames import ANSWER, CANCEL, PART, Parent, frame, json_bytes
from burnish.errors import ConfigError
from burnish.rollout.hosted.process import NEWS, HostedRequest

AGAIN_S = 0.2  # before a part that did not end is aborted once more: it may not have begun


class EngineHost(ABC):
    dead: ClassVar[tuple[type[BaseException], ...]] = ()  # errors by which the program says that it is no more

    def __init__(self, parent: Parent):
        self._parent = parent
        self._closed = asyncio.Event()
        self._is_open = False  # there are whole weights, so parts may begin
        self._stirs = asyncio.Condition()  # it was opened, or a request is not wanted any more
        self._version = 0
        self._parts: dict[str, asyncio.Task[str]] = {}  # that run, by the program's request id
        self._aborted: set[str] = set()  # of these
        self._unwanted: set[int] = set()  # requests that shall end
        self._asked: set[int] = set()  # requests without an end
        self._tasks: set[asyncio.Task[None]] = set()
        self._outbox: list[bytes] = []  # frames

    # What is particular about a program

    @abstractmethod
    async def begin(self, arguments: dict[str, Any]) -> list[int]:
        """Start the program; the process ids of what computes. ConfigError where the arguments are to blame."""

    @abstractmethod
    async def sign_of_life(self) -> None:
        """Return when all processes of the program have answered."""

    @abstractmethod
    def tokens(
        self, name: str, ask: HostedRequest, done: list[int]
    ) -> AsyncIterator[tuple[list[int], list[float], str | None]]:
        """Continue after `done`: token ids and their log-probs as they come, and why they end ("abort": by request)."""

    @abstractmethod
    async def end_parts(self, names: list[str]) -> None:
        """End requests of the program, which it may not know, or no longer."""

    @abstractmethod
    async def load(self, files: list[str]) -> list[dict[str, Any]]:
        """Take over weights: what each worker says of them."""

    @abstractmethod
    async def forget(self) -> bool:
        """Drop what was computed with old weights; whether it could be."""

    @abstractmethod
    async def do_log_probs_of(self, token_ids: list[int]) -> list[float]:
        """Of each token after the first, at temperature 1."""

    @abstractmethod
    async def end(self) -> None:
        """End the program and its processes."""

    async def run(self, number: int, arguments: dict[str, Any], beat_s: float) -> None:
        """The whole life of it; `number` is that of the call that starts it."""
        self._loop = asyncio.get_running_loop()
        self._parent.deliver(self._loop, self._heard)
        try:
            pids = await self.begin(arguments)
        except Exception as error:  # noqa: BLE001 (whatever it is, the owner reports it)
            is_config = isinstance(error, ConfigError)
            problem = str(error) if is_config else f"{type(error).__name__}: {error}"
            self._parent.send(number, {"problem": problem, "is_config": is_config})
            return
        self._parent.send(number, {"pids": pids})
        self._do(self._beat(beat_s))
        await self._closed.wait()
        await self.end()

    def _heard(self, number: int, kind: int, payload: bytes) -> None:
        if kind == CANCEL:
            if number in self._asked:
                self._unwanted.add(number)
                self._do(self._abort([name for name in self._parts if name.startswith(f"{number}/")]))
            return
        match pickle.loads(payload):  # noqa: S301  from the owner, through a private pipe
            case ("close",):
                self._closed.set()
            case ("ask", request):
                self._asked.add(number)
                self._do(self._answer(number, request))
            case ("call", method, arguments):
                self._do(self._call(number, method, arguments))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _say(self, number: int, value: Any, kind: int = PART) -> None:
        """Messages of one pass of the event loop are written together."""
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(frame(number, kind, json_bytes(value)))

    def _flush(self) -> None:
        frames, self._outbox = self._outbox, []
        self._parent.write(b"".join(frames))

    def _lost(self, error: BaseException) -> None:
        self._say(NEWS, {"lost": str(error) or type(error).__name__})

    async def _beat(self, beat_s: float) -> None:
        try:
            while True:
                await self.sign_of_life()
                self._say(NEWS, {"alive": True})
                await asyncio.sleep(beat_s)
        except self.dead as error:
            self._lost(error)
        except Exception as error:  # noqa: BLE001 (the owner reports it)
            self._say(NEWS, {"lost": f"it could not be asked for a sign of life: {type(error).__name__}: {error}"})

    # Requests

    def _tokens(self, number: int, token_ids: list[int], log_probs: list[float], version: int, **end: str) -> None:
        """`end`: of the fields of HostedTokens, what ends the request."""
        self._say(number, {"token_ids": token_ids, "log_probs": log_probs, "version": version, **end})

    async def _answer(self, number: int, ask: HostedRequest) -> None:
        try:
            await self._all_parts(number, ask)
        except self.dead as error:
            self._lost(error)
        except Exception as error:  # noqa: BLE001 (it is reported to the caller)
            cause = error.__cause__ or error
            self._tokens(number, [], [], self._version, problem=f"{type(cause).__name__}: {cause}")
        finally:
            self._asked.discard(number)
            self._unwanted.discard(number)

    async def _all_parts(self, number: int, ask: HostedRequest) -> None:
        done: list[int] = []
        end = "abort"
        while end == "abort" and len(done) < ask.limit:
            async with self._stirs:
                await self._stirs.wait_for(lambda: self._is_open or number in self._unwanted)
            if number in self._unwanted:
                break
            name = f"{number}/{len(done)}/{self._version};"  # none is the beginning of another
            part = self._parts[name] = self._loop.create_task(self._part(name, number, ask, done))
            try:
                end = await part
                if end == "abort" and name not in self._aborted:
                    raise RuntimeError(f"it was ended after {len(done)} tokens without a request to end it")
            finally:
                del self._parts[name]
                self._aborted.discard(name)
        self._tokens(number, [], [], self._version, end=end if len(done) < ask.limit else "length")

    async def _part(self, name: str, number: int, ask: HostedRequest, done: list[int]) -> str:
        """Continue after `done` until the program ends it; why it did."""
        version, end = self._version, "abort"
        async for token_ids, log_probs, why in self.tokens(name, ask, list(done)):
            if token_ids:
                done += token_ids
                self._tokens(number, token_ids, log_probs, version)
            end = why or end
        return end

    async def _abort(self, names: list[str]) -> None:
        """A part that has not reached the program yet is not known there, hence more than once."""
        await self._stir()
        while left := [name for name in names if name in self._parts]:
            parts = [self._parts[name] for name in left]
            self._aborted.update(left)
            await self.end_parts(left)
            await asyncio.wait(parts, timeout=AGAIN_S)
            await asyncio.sleep(0)  # those who wait for them take them out

    # Everything else

    async def _call(self, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            answer = {"value": await getattr(self, f"do_{method}")(*arguments)}
        except self.dead as error:
            return self._lost(error)
        except Exception as error:  # noqa: BLE001 (it is reported to the caller)
            answer = {"problem": f"{type(error).__name__}: {error}"}
        self._say(number, answer, ANSWER)

    async def do_load(self, files: list[str], version: int) -> list[dict[str, Any]]:
        """Take over weights; what each worker says of them. Where it fails, no part begins until it succeeds. Waits for
        parts to end and for their memory to be free, as long as its owner does."""
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


def run(host: type[EngineHost]) -> None:
    parent = Parent(kill_group=False)  # `keeper` does that, with what they leave behind
    number, _, payload = parent.receive()
    _, arguments, beat_s = pickle.loads(payload)  # noqa: S301  as above

    asyncio.run(host(parent).run(number, arguments, beat_s))
