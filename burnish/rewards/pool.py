"""Scoring in worker processes: `await pool.score(request)`, or `pool.submit(request)` for a plain future.

The pool owns a thread with its own event loop (loop_thread.py), so it serves callers from any thread and any number of
event loops (`asyncio.run` once per step is fine), and a caller that blocks its loop cannot delay a time limit. On that
loop:

- consumes calls, oldest first, while a slot is free; a call is one request, or all of a batch where the function takes
  lists. It keeps its slot for its retries: a sample that cannot be scored is known to be one before the samples behind
  it are tried, so that a function that always fails is noticed early;
- waits for a slot, then for the answer, at most `timeout` seconds per request from when the child was asked;
- a time-out kills the child, a death is noticed, and either way the next call starts a fresh one.

A slot is one call of one child (several per child where the function is async). There are as many as children that have
started, and a few more, so that children are started while calls wait, a few at a time and never more than
`num_workers`: a quick function is done before many have started.

Children are kept between steps. `close()` (or the end of the program) ends them all. A result always comes back: a
failed sample is a ScoreResult with an `error`, never an exception.
"""

import asyncio
import concurrent.futures
import contextlib
import math
import os
import time
from collections.abc import Sequence
from typing import Any

from burnish.child.process import ChildKilled
from burnish.errors import ConfigError
from burnish.loop_thread import LoopThread
from burnish.rewards.child import NotLoaded, ScoringFailed, ScoringProcess, ScoringTimedOut
from burnish.rewards.contract import FunctionSpec, ScoreRequest, ScoreResult
from burnish.rewards.function import result_of
from burnish.waits import waiting

ASYNC_CALLS_PER_CHILD = 32
STARTING_AT_ONCE = max(os.cpu_count() or 1, 2)


class ScorePool:
    """`num_workers` processes that score with the function of `spec`.

    at_once   calls in flight in all, where the function is async; None: ASYNC_CALLS_PER_CHILD for each process
    limit     how messages name the time limit
    """

    def __init__(
        self,
        spec: FunctionSpec,
        num_workers: int = 1,
        timeout: float = 60.0,
        retries: int = 0,
        *,
        at_once: int | None = None,
        limit: str = "reward.timeout={:g} s",
    ):
        if num_workers < 1:
            raise ConfigError(f"reward.num_workers={num_workers}: at least 1 process is needed")
        if not timeout > 0:
            raise ConfigError(f"reward.timeout={timeout}: must be a positive number of seconds")
        if retries < 0:
            raise ConfigError(f"reward.retries={retries}: must be 0 or more")
        self.spec, self.timeout, self.retries = spec, timeout, retries
        self.at_once, self._limit = at_once, limit.format(timeout)
        self._processes = [ScoringProcess(spec, self._grow) for _ in range(num_workers)]
        self._slots = asyncio.Semaphore(0)
        self._granted = self._started = 0  # slots that there are; children that were ever started
        self._broken: str | None = None
        # Of the function, once it is loaded: the row's fields that it insists on, and whether it takes lists.
        self.required: frozenset[str] | None = None
        self.batch: bool | None = None
        self._opening = asyncio.Lock()
        self._thread = LoopThread("the score pool", self._end_children, "burnish-rewards", "reward")

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score one response; failures come back inside the result."""
        return await asyncio.wrap_future(self.submit(request))

    def submit(self, request: ScoreRequest) -> concurrent.futures.Future[ScoreResult]:
        """The same for callers without an event loop."""
        return self._thread.run(self._score(request))

    def submit_all(self, requests: Sequence[ScoreRequest]) -> concurrent.futures.Future[list[ScoreResult]]:
        """Score many: in one call where the function takes lists, else one by one."""
        return self._thread.run(self._score_all(requests))

    def check(self) -> None:
        """Start a child and load the function. ConfigError: it cannot be loaded or called, with the reason."""
        try:
            self._thread.run(self._open()).result()
        except ScoringFailed as error:
            raise ConfigError(str(error)) from None

    def rest(self) -> None:
        """End the children; the next request starts fresh ones."""
        self._thread.ended(self._thread.run(self._end_children()))

    def close(self) -> None:
        """End all children and wait for them. Calls in flight are cancelled; the pool cannot be used again."""
        self._thread.close()

    # From here on everything runs on the pool's own loop.

    async def _score(self, request: ScoreRequest) -> ScoreResult:
        (result,) = await self._score_in_one_call([request])
        return result

    async def _score_all(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        with contextlib.suppress(ScoringFailed):  # each sample says it then
            await self._open()
        if self.batch and requests:
            return await self._score_in_one_call(requests)
        return await asyncio.gather(*(self._score(request) for request in requests))

    async def _score_in_one_call(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Tried again as a whole where it fails as a whole: then no sample has a score."""
        began = time.perf_counter()
        try:
            await self._open()
        except ScoringFailed as failure:  # it says the same however often it is asked
            return _all_failed(requests, failure, began)
        with waiting("reward", "", "a free slot to be scored in", None):  # the calls before it have their limits
            await self._slots.acquire()
        try:
            began = time.perf_counter()
            for tries_left in reversed(range(self.retries + 1)):
                try:
                    answers = await self._ask(requests)
                    break
                except ScoringFailed as failure:
                    if not tries_left:
                        return _all_failed(requests, failure, began)
        finally:
            self._slots.release()
        each = (time.perf_counter() - began) / len(requests)
        return [result_of(request, answer, each) for request, answer in zip(requests, answers, strict=True)]

    async def _ask(self, requests: Sequence[ScoreRequest]) -> list[dict[str, Any]]:
        many = f"scores of {len(requests)} samples within {len(requests)} × "
        while True:
            least = min(process.busy for process in self._processes)
            free = [process for process in self._processes if process.busy == least]
            process = next((one for one in free if one.alive), free[0])
            try:
                return await process.ask(requests, self.timeout * len(requests))
            except ScoringTimedOut:
                what = "score within " if len(requests) == 1 else many
                raise ScoringFailed(f"timed out: no {what}{self._limit}") from None
            except ChildKilled:
                continue  # finite: each kill is the end of another call's attempt

    async def _open(self) -> None:
        """Start the first child. How many slots there are is known once it says whether the function is async."""
        if self._started:
            return
        async with self._opening:
            if self._broken is not None:  # do not start a process per sample to hear the same again
                raise NotLoaded(self._broken)
            if not self._started:
                try:
                    await self._processes[0].started()
                except NotLoaded as error:
                    self._broken = str(error)
                    raise

    def _grow(self, first: ScoringProcess) -> None:
        """A worker has its first child: more calls may be made, and another child may be started for them."""
        self.required, self.batch = first.required, first.batch
        self._started += 1
        workers = len(self._processes)
        most = (self.at_once or ASYNC_CALLS_PER_CHILD * workers) if first.concurrent else workers
        wanted = min(most, math.ceil(most / workers) * (self._started + STARTING_AT_ONCE))
        for _ in range(wanted - self._granted):
            self._slots.release()
        self._granted = max(self._granted, wanted)

    async def _end_children(self) -> None:
        await asyncio.gather(*(process.kill() for process in self._processes))


def _all_failed(requests: Sequence[ScoreRequest], failure: ScoringFailed, began: float) -> list[ScoreResult]:
    each = (time.perf_counter() - began) / len(requests)
    return [ScoreResult.failure(request, str(failure), each) for request in requests]
