"""Scoring in this process, for functions that no other can import: those of a notebook, closures, lambdas.

`ScoringThread` is to `ScorePool` what a scoring process is. A plain function is called in a thread of its own, one call
at a time; an async one on an event loop in a thread, several calls at once. Each call has the time limit; nothing is
raised into a running thread, so one that is late is left behind, as is an event loop that a function blocks, and the
next call gets another.
"""

import asyncio
import atexit
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from burnish.errors import ConfigError
from burnish.loop_thread import LoopThread
from burnish.rewards.contract import FunctionSpec, NotLoaded, ScoreRequest, ScoringFailed
from burnish.rewards.function import ScoreFunction, WeightedSum, answers_here, awaited_answers, bound, failure_text
from burnish.waits import waiting

THREAD = "reward function"
GRACE_S = 2.0  # for the event loop to show that it runs

log = logging.getLogger(__name__)


class ScoringThread:
    alive = True

    def __init__(self, spec: FunctionSpec, on_first: Callable[["ScoringThread"], None]):
        self._spec, self._on_first = spec, on_first
        self._function: ScoreFunction | WeightedSum | None = None
        self._loop: LoopThread | None = None  # of an async function
        self.busy = 0  # calls
        self.concurrent = self.batch = False  # of the function, see `ScoreFunction`
        self.required: frozenset[str] = frozenset()

    async def ask(self, requests: Sequence[ScoreRequest], timeout: float, wanted: str) -> list[dict[str, Any]]:
        """An answer per request; `wanted` is what a time-out did not bring. ScoringFailed: it failed or is late."""
        function = await self.started()
        self.busy += 1
        try:
            with waiting("reward", "", f"a call of {self._spec.label}", timeout, report_only=True):
                call = self._in_loop if function.concurrent else self._in_thread
                answers = await call(function, requests, timeout)
        except TimeoutError:
            raise ScoringFailed(f"timed out: no {wanted}") from None
        finally:
            self.busy -= 1
        if all("error" in answer for answer in answers):
            raise ScoringFailed(answers[0]["error"])
        return answers

    async def started(self) -> ScoreFunction | WeightedSum:
        if self._function is None:
            try:
                function = bound(self._spec)
            except ConfigError as error:
                raise NotLoaded(str(error)) from None
            self.concurrent, self.batch = function.concurrent, function.batch
            self.required = frozenset(function.required)
            self._function = function
            self._on_first(self)
        return self._function

    async def kill(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            await asyncio.to_thread(loop.close)

    async def _in_loop(
        self, function: ScoreFunction | WeightedSum, requests: Sequence[ScoreRequest], timeout: float
    ) -> list[dict[str, Any]]:
        label = self._spec.label
        loop = self._loop = self._loop or LoopThread(label, name=THREAD, kind="reward")
        work = awaited_answers(function, function(*requests), len(requests), label)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(loop.run(work)), timeout)
        except TimeoutError:
            alive = asyncio.wrap_future(loop.run(asyncio.sleep(0)))
            if not (await asyncio.wait([alive], timeout=GRACE_S))[0] and self._loop is loop:
                log.warning("%s blocks its event loop, which is left behind", label)
                self._loop = None
                atexit.unregister(loop.close)  # it would wait
            raise

    async def _in_thread(
        self, function: ScoreFunction | WeightedSum, requests: Sequence[ScoreRequest], timeout: float
    ) -> list[dict[str, Any]]:
        found: Future[list[dict[str, Any]]] = Future()
        found.set_running_or_notify_cancel()  # so that whoever gives it up leaves it as it is

        def call() -> None:
            try:
                found.set_result(answers_here(function, requests, self._spec.label))
            except BaseException:  # noqa: BLE001  also a KeyboardInterrupt that the function raises
                found.set_result([{"error": failure_text()}] * len(requests))

        thread = threading.Thread(target=call, name=THREAD, daemon=True)
        thread.start()
        answers = await asyncio.wait_for(asyncio.wrap_future(found), timeout)
        thread.join()  # it has nothing left to do
        return answers
