"""Scoring in worker processes: `await pool.score(request)`, or `pool.submit(request)` for a plain future.

The pool owns a thread with its own event loop, so it serves callers from any thread and any number of event loops
(`asyncio.run` once per step is fine), and a caller that blocks its loop cannot delay a time limit. On that loop:

- consumes requests, oldest first, while a slot is free; a slot is one call of one child (several per child where the
  function is async), and a request keeps its slot for its retries: a sample that cannot be scored is known to be one
  before the samples behind it are tried, so that a function that always fails is noticed early;
- waits for a slot, then for the answer, at most `timeout` seconds from when the child was asked;
- a time-out kills the child, a death is noticed, and either way the next request starts a fresh one.

Children are started when first needed and kept between steps. `close()` (or the end of the program) ends them all.
A result always comes back: a failed sample is a ScoreResult with an `error`, never an exception.
"""

import asyncio
import atexit
import concurrent.futures
import os
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from burnish.errors import ConfigError, WorkerError
from burnish.rewards.child import Bystander, Child, Failed, NotLoaded
from burnish.rewards.contract import NEW_PROMPTS, FunctionSpec, ScoreRequest, ScoreResult

ASYNC_CALLS_PER_CHILD = 32
CLOSE_SECONDS = 10.0

T = TypeVar("T")


class ScorePool:
    """`num_workers` processes that score with the function of `spec`."""

    def __init__(self, spec: FunctionSpec, num_workers: int = 1, timeout: float = 60.0, retries: int = 0):
        if num_workers < 1:
            raise ConfigError(f"reward.num_workers={num_workers}: at least 1 process is needed")
        if not timeout > 0:
            raise ConfigError(f"reward.timeout={timeout}: must be a positive number of seconds")
        if retries < 0:
            raise ConfigError(f"reward.retries={retries}: must be 0 or more")
        self.spec, self.timeout, self.retries = spec, timeout, retries
        self._workers = [_Worker(spec) for _ in range(num_workers)]
        self._gate = threading.Lock()  # guards the start and end of the thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._slots: asyncio.Semaphore | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        self._broken: str | None = None
        self.required: frozenset[str] | None = None  # the row's fields that the function insists on, once it is loaded
        self._opening = asyncio.Lock()
        self._closed = False
        self._owner = os.getpid()

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score one response; failures come back inside the result."""
        return await asyncio.wrap_future(self.submit(request))

    def submit(self, request: ScoreRequest) -> concurrent.futures.Future[ScoreResult]:
        """The same for callers without an event loop."""
        return self._run(self._score(request))

    def check(self) -> None:
        """Start a child and load the function. ConfigError: it cannot be loaded or called, with the reason."""
        try:
            self._run(self._open()).result()
        except Failed as error:
            raise ConfigError(str(error)) from None

    def rest(self) -> None:
        """End the children; the next request starts fresh ones."""
        self._run(self._end_children()).result(CLOSE_SECONDS)

    def close(self) -> None:
        """End all children and wait for them. Calls in flight are cancelled; the pool cannot be used again."""
        if os.getpid() != self._owner:  # a fork has neither the thread nor a say over the children
            return
        with self._gate:
            self._closed = True
            loop, self._loop = self._loop, None
        atexit.unregister(self.close)
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._end(), loop).result(CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(CLOSE_SECONDS)
        loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if os.getpid() != self._owner:
            work.close()
            raise WorkerError("the score pool belongs to the process that this one was forked from")
        with self._gate:
            if self._closed:
                work.close()
                raise WorkerError("the score pool is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="burnish-rewards", daemon=True)
                self._thread.start()
                atexit.register(self.close)
            return asyncio.run_coroutine_threadsafe(self._call(work), self._loop)

    # From here on everything runs on the pool's own loop.

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await work
        finally:
            self._calls.discard(task)

    async def _score(self, request: ScoreRequest) -> ScoreResult:
        began = time.perf_counter()
        try:
            slots = await self._open()
        except Failed as failure:  # it says the same however often it is asked
            return ScoreResult(None, {}, str(failure), time.perf_counter() - began, request.data_source)
        async with slots:
            began = time.perf_counter()
            for tries_left in reversed(range(self.retries + 1)):
                try:
                    answer = await self._ask(request)
                    break
                except Failed as failure:
                    if not tries_left:
                        seconds = time.perf_counter() - began
                        return ScoreResult(None, {}, str(failure), seconds, request.data_source)
        seconds, info = time.perf_counter() - began, answer["info"]
        proposed = info.pop(NEW_PROMPTS, None)
        return ScoreResult(answer["score"], info, None, seconds, request.data_source, new_prompts=proposed)

    async def _ask(self, request: ScoreRequest) -> dict[str, Any]:
        while True:
            worker = min(self._workers, key=lambda w: (w.busy, not w.alive))
            try:
                return await worker.ask(request, self.timeout)
            except Bystander:
                continue  # finite: each kill is the end of another request's attempt

    async def _open(self) -> asyncio.Semaphore:
        """The slots; how many there are is known once the first child says whether the function is async."""
        if self._slots is None:
            async with self._opening:
                if self._broken is not None:  # do not start a process per sample to hear the same again
                    raise NotLoaded(self._broken)
                if self._slots is None:
                    try:
                        child = await self._workers[0].child()
                    except NotLoaded as error:
                        self._broken = str(error)
                        raise
                    self.required = child.required
                    per_child = ASYNC_CALLS_PER_CHILD if child.concurrent else 1
                    self._slots = asyncio.Semaphore(per_child * len(self._workers))
        return self._slots

    async def _end(self) -> None:
        calls = list(self._calls)  # asyncio has tasks of its own on this loop, which must end by themselves
        for call in calls:
            if not call.cancelling():  # one that its caller gave up is ending its child, which must not be cut short
                call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._end_children()

    async def _end_children(self) -> None:
        await asyncio.gather(*(worker.close() for worker in self._workers))


class _Worker:
    """A place for one child: starts it when asked, again when it is gone."""

    def __init__(self, spec: FunctionSpec):
        self._spec = spec
        self._child: Child | None = None
        self._starting = asyncio.Lock()
        self.busy = 0

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    async def ask(self, request: ScoreRequest, timeout: float) -> dict[str, Any]:
        self.busy += 1
        try:
            return await (await self.child()).ask(request, timeout)
        finally:
            self.busy -= 1

    async def child(self) -> Child:
        async with self._starting:
            if self._child is None or not self._child.alive:
                self._child = await Child.start(self._spec)
            return self._child

    async def close(self) -> None:
        if self._child is not None:
            await self._child.kill()
