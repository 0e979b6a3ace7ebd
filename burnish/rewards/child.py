"""One scoring process as the pool sees it: started when it is first asked, and again when it has died.

Waits for: the function to be loaded at most START_SECONDS, each answer at most its time limit; a process that exceeds
it is killed with everything it started. A caller that gives up ends its call: by a CANCEL where the function is async
(one process then runs several calls), else by killing the process. process.py is the other side.
"""

import asyncio
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

from burnish.child.process import ChildDied, ChildProcess
from burnish.rewards.contract import FunctionSpec, ScoreRequest

START_SECONDS = 300.0  # a user's module may import large libraries from a slow disk
GRACE_SECONDS = 2.0  # an async function's limit is kept by the child itself; past this it must be blocked


class ScoringFailed(Exception):
    """This attempt failed; the text says why and is what the user reads."""


class ScoringTimedOut(ScoringFailed):
    """It took longer than it may."""


class NotLoaded(ScoringFailed):
    """The function cannot be loaded or called, so no other process could do better."""


class ScoringProcess:
    """Scores with the function of `spec`. `on_first` is called when it has started for the first time."""

    def __init__(self, spec: FunctionSpec, on_first: Callable[["ScoringProcess"], None]):
        self._spec, self._on_first = spec, on_first
        self._child: ChildProcess | None = None
        self._starting = asyncio.Lock()
        self.busy = 0  # calls
        self.concurrent = self.batch = False  # of the function, see `ScoreFunction`
        self.required: frozenset[str] = frozenset()

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    async def ask(self, requests: Sequence[ScoreRequest], timeout: float) -> list[dict[str, Any]]:
        """An answer per request, {"score", "info"} or {"error"}. More than one request is for functions in the batch
        form. ScoringFailed: the call raised, took too long, returned nonsense or ended its process. ChildKilled: the
        process was killed for another call's time-out, so ask again."""
        try:
            payload = pickle.dumps((list(requests), timeout))
        except Exception as error:  # noqa: BLE001  a row may hold anything; what cannot travel is that sample's failure
            raise ScoringFailed(f"the row cannot be sent to the scoring process: {error}") from None
        self.busy += 1
        try:
            child = await self.started()
            subject = f"scoring process {child.pid}: a call"
            limit = timeout + GRACE_SECONDS if self.concurrent else timeout
            answer = await child.call(payload, limit, wait=("reward", subject), can_cancel=self.concurrent)
        except TimeoutError:
            await child.kill()
            answer = {"timed_out": True}
        except ChildDied as death:
            raise ScoringFailed(str(death)) from None
        finally:
            self.busy -= 1
        match answer:
            case {"timed_out": _}:
                raise ScoringTimedOut(f"no score within {timeout:g} s")
            case {"error": str(problem)}:
                raise ScoringFailed(problem)
            case {"answers": [*answers]} if len(answers) == len(requests):
                return answers
        raise ScoringFailed("the scoring process sent an unreadable answer")

    async def started(self) -> ChildProcess:
        """A live process that has loaded the function. ScoringFailed: it could not."""
        async with self._starting:
            if self._child is None or not self._child.alive:
                is_first, self._child = self._child is None, await self._start()
                if is_first:
                    self._on_first(self)
            return self._child

    async def kill(self) -> None:
        if self._child is not None:
            await self._child.kill()

    async def _start(self) -> ChildProcess:
        path = os.pathsep.join(entry for entry in sys.path if entry)  # what is importable here is importable there
        hello = pickle.dumps((self._spec, os.environ.get("PYTHONPATH")))
        try:
            child = await ChildProcess.start(
                "the scoring process",
                [sys.executable, "-m", "burnish.rewards.process"],
                env={**os.environ, "PYTHONPATH": path},
            )
        except ChildDied as error:
            raise ScoringFailed(str(error)) from None
        key = self._spec.key
        try:
            subject = f"scoring process {child.pid}: its function to be loaded"
            facts = await child.call(hello, START_SECONDS, wait=("reward", subject))
        except TimeoutError:
            await child.kill()
            raise NotLoaded(f"{key}: not loaded within {START_SECONDS:g} s") from None
        except ChildDied as death:
            raise NotLoaded(f"{key}: while it was loaded, {death}") from None
        if "error" in facts:
            await child.kill()
            raise NotLoaded(facts["error"])
        self.concurrent, self.batch = facts["concurrent"], facts["batch"]
        self.required = frozenset(facts["required"])
        return child
