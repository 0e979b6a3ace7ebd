"""Scoring in worker processes: `pool.submit(request)` gives a future; the function runs in process.py, the other side.

The pool's own thread and event loop (loop_thread.py) consumes calls, oldest first, while a slot is free; a call is one
request, or all of a batch where the function takes lists, and keeps its slot for its retries. It waits for a slot, then
for the answer, at most `timeout` seconds per request. A time-out kills the child with everything it started, a death is
noticed, and the next call starts a fresh one. Where a child ended that several calls of an async function shared, each
of them is asked again alone in another child, one after the other: only what ends that one too has failed. A caller
that gives up ends its call: by a CANCEL where the function is async, else by killing the child. A slot is one call of
one child (several where the function is async); there are a few more than started children: these are started while
calls wait, a few at a time, at most `num_workers`. A function of the running program is called in threads (here.py).
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import math
import os
import pickle
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from burnish.child.output import ShownOutput
from burnish.child.process import ChildDied, ChildKilled, ChildProcess
from burnish.errors import ConfigError
from burnish.loop_thread import LoopThread
from burnish.rewards.contract import FunctionSpec, NotLoaded, ScoreRequest, ScoreResult, ScoringFailed
from burnish.rewards.function import is_answer, result_of
from burnish.rewards.here import ScoringThread
from burnish.waits import waiting

ASYNC_CALLS_PER_CHILD = 32
STARTING_AT_ONCE = max(os.cpu_count() or 1, 2)
START_SECONDS = 300.0  # a user's module may import large libraries from a slow disk
IMPORT_SHARE = 0.9  # of these, for the child to say where it is
GRACE_SECONDS = 2.0  # an async function's limit is kept by the child itself; past this it must be blocked


log = logging.getLogger(__name__)


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
        self.spec, self.timeout, self.retries = spec, timeout, retries
        self.at_once, self._limit = at_once, limit.format(timeout)
        output = ShownOutput(f"the processes that score with {spec.label}")
        self.processes: list[ScoringProcess | ScoringThread]
        if spec.is_here:  # calls one after another, or all on one event loop
            self.processes = [ScoringThread(spec, self._grow)]
        else:
            self.processes = [ScoringProcess(spec, self._grow, output) for _ in range(num_workers)]
        self._suspects = ScoringProcess(spec, lambda _: None, output)  # for calls whose child ended, one at a time
        self._asking_alone = asyncio.Lock()
        self._slots = asyncio.Semaphore(0)
        self._granted = self._started = 0  # slots that there are; children that were ever started
        self._broken: str | None = None
        # Of the function, once it is loaded: the row's fields that it insists on, and whether it takes lists.
        self.required: frozenset[str] | None = None
        self.batch: bool | None = None
        self._opening = asyncio.Lock()
        self._thread = LoopThread("the score pool", self._end_children, "burnish-rewards", "reward")

    def submit(self, request: ScoreRequest) -> concurrent.futures.Future[ScoreResult]:
        """Score one response; failures come back inside the result."""
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
            with waiting("reward", "", "a free slot to be scored in", None):  # the calls before it have their limits
                await self._slots.acquire()
            try:
                began = time.perf_counter()
                answers = await self._ask(requests, self.retries)
            finally:
                self._slots.release()
        except ScoringFailed as failure:
            answers = [{"error": str(failure)}] * len(requests)
        each = (time.perf_counter() - began) / len(requests)
        return [result_of(request, answer, each) for request, answer in zip(requests, answers, strict=True)]

    async def _ask(
        self, requests: Sequence[ScoreRequest], retries: int, is_suspect: bool = False
    ) -> list[dict[str, Any]]:
        many = len(requests)
        wanted = "score within " if many == 1 else f"scores of {many} samples within {many} × "
        try:
            async with self._alone() if is_suspect else contextlib.nullcontext(self._least_busy()) as process:
                return await process.ask(requests, self.timeout * many, wanted + self._limit)
        except ChildKilled:
            return await self._ask(requests, retries, is_suspect=True)
        except ScoringFailed:
            if not retries:
                raise
            return await self._ask(requests, retries - 1, is_suspect)

    def _least_busy(self) -> "ScoringProcess | ScoringThread":
        least = min(process.busy for process in self.processes)
        free = [process for process in self.processes if process.busy == least]
        return next((one for one in free if one.alive), free[0])

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator["ScoringProcess"]:
        """The process for calls whose child has ended, for one of them."""
        with waiting("reward", "", "to be scored alone", None):  # the calls before it have their limits
            await self._asking_alone.acquire()
        try:
            yield self._suspects
        finally:
            self._asking_alone.release()

    async def _open(self) -> None:
        """Start the first child. How many slots there are is known once it says whether the function is async."""
        if self._started:
            return
        async with self._opening:
            if self._broken is not None:  # do not start a process per sample to hear the same again
                raise NotLoaded(self._broken)
            if not self._started:
                try:
                    await self.processes[0].started()
                except NotLoaded as error:
                    self._broken = str(error)
                    raise

    def _grow(self, first: "ScoringProcess | ScoringThread") -> None:
        """A worker has its first child: more calls may be made, and another child may be started for them."""
        self.required, self.batch = first.required, first.batch
        self._started += 1
        workers = len(self.processes)
        most = (self.at_once or ASYNC_CALLS_PER_CHILD * workers) if first.concurrent else workers
        wanted = min(most, math.ceil(most / workers) * (self._started + STARTING_AT_ONCE))
        for _ in range(wanted - self._granted):
            self._slots.release()
        self._granted = max(self._granted, wanted)

    async def _end_children(self) -> None:
        await asyncio.gather(*(process.kill() for process in (*self.processes, self._suspects)))


class ScoringProcess:
    """A child as the pool sees it: started when it is asked and there is none. `on_first`: after the first start."""

    def __init__(self, spec: FunctionSpec, on_first: Callable[["ScoringProcess"], None], output: ShownOutput):
        self._spec, self._on_first, self._output = spec, on_first, output
        self._child: ChildProcess | None = None
        self._starting = asyncio.Lock()
        self.busy = 0  # calls
        self._shared = False  # whether there were several at a time since there was none
        self.concurrent = self.batch = False  # of the function, see `ScoreFunction`
        self.required: frozenset[str] = frozenset()

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    async def ask(self, requests: Sequence[ScoreRequest], timeout: float, wanted: str) -> list[dict[str, Any]]:
        """An answer per request; `wanted` is what a time-out did not bring. ScoringFailed: the call raised, took too
        long, returned nonsense or ended its process. ChildKilled: this call or one next to it ended or blocked it, so
        ask again, alone."""
        try:
            payload = pickle.dumps((list(requests), timeout))
        except Exception as error:  # noqa: BLE001  a row may hold anything; what cannot travel is that sample's failure
            raise ScoringFailed(f"the row cannot be sent to the scoring process: {error}") from None
        self.busy += 1
        self._shared |= self.busy > 1
        try:
            child = await self.started()
            subject = f"scoring process {child.pid}: a call"
            limit = timeout + GRACE_SECONDS if self.concurrent else timeout
            answer = await child.call(payload, limit, wait=("reward", subject), can_cancel=self.concurrent)
            match answer:
                case {"timed_out": _} | {"error": str()}:
                    pass
                case {"answers": [*answers]} if len(answers) == len(requests) and all(map(is_answer, answers)):
                    return answers
                case _:
                    raise ChildDied("the scoring process sent an unreadable answer")
        except (TimeoutError, ChildDied) as end:
            shared = self._shared
            await child.kill()
            if shared:
                raise ChildKilled from None
            answer = {"error": str(end)} if isinstance(end, ChildDied) else {"timed_out": True}
        finally:
            self.busy -= 1
            self._shared &= self.busy > 0
        raise ScoringFailed(answer.get("error", f"timed out: no {wanted}"))

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
        hello = pickle.dumps((self._spec, os.environ.get("PYTHONPATH"), IMPORT_SHARE * START_SECONDS))
        try:
            child = await ChildProcess.start(
                "the scoring process",
                [sys.executable, "-m", "burnish.rewards.process"],
                env={**os.environ, "PYTHONPATH": path},
                stderr=self._output,
                on_part=lambda _, text: log.warning("%s", text),  # it takes long to import the function
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
