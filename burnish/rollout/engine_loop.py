"""A rollout engine with an event loop and a thread of its own, for a worker whose own loop must stay responsive.

`EngineLoop` is itself a `RolloutEngine`: `generate` may be awaited in any event loop, and the other methods be called
in any thread. Only its thread steps the engine. The thread consumes the requests that `generate` hands over; with none
to generate it waits in its event loop, and a request, an abort or `stop` unblocks it. While it generates it takes them
between two steps.

Weights and memory change where the caller is (`publish`, `sleep`, `wake`), because what they wait for may be bound to
its thread: the engine's thread stands still meanwhile, between two steps.

A caller that is cancelled takes its request with it. `stop` ends what runs with a RolloutError: what was sampled so far
is nobody's.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from burnish.errors import DeadlineError, RolloutError
from burnish.rollout.base import Completion, OnToken, RolloutEngine, Sampling

STEP_DEADLINE_S = 300.0  # for the step that runs; a step cannot be interrupted
STOP_DEADLINE_S = 30.0  # the same, at the end, when nobody wants its result any more
LOOK_S = 0.5  # between two looks at whether the thread still lives
STOPPED = "the rollout engine has stopped"

log = logging.getLogger(__name__)


class EngineLoop(RolloutEngine):
    """Generates with `engine`, which nobody else may step from now on."""

    def __init__(self, engine: RolloutEngine, step_deadline_s: float = STEP_DEADLINE_S):
        self.context, self.vocabulary = engine.context, engine.vocabulary
        self._engine, self._step_deadline_s = engine, step_deadline_s
        # The factory keeps the runner from making its loop that of the calling thread.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._stop_asked = asyncio.Event()  # of the thread
        self._lock = threading.Lock()  # for the two below, so that nothing is handed to a loop that has ended
        self._is_over = False
        self._unanswered: set[Future[Completion]] = set()
        self._thread = threading.Thread(target=self._run, name="rollout-engine", daemon=True)
        self._thread.start()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        request_id: str,
        images: Sequence[Any] | None = None,
        order: tuple[int, ...] = (),
        on_token: OnToken | None = None,
    ) -> Completion:
        work = self._engine.generate(
            prompt_ids, sampling, request_id=request_id, images=images, order=order, on_token=_in_this_loop(on_token)
        )
        with self._lock:
            if self._is_over:
                work.close()
                raise RolloutError(f"request {request_id}: {STOPPED}")
            answer = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._unanswered.add(answer)
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            if is_cancelled():
                raise  # by its caller: the request is cancelled with it
            raise RolloutError(f"request {request_id}: {STOPPED}") from None
        finally:
            with self._lock:
                self._unanswered.discard(answer)

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return len(self._unanswered)

    def abort(self, request_id: str) -> None:
        self._hand_over(lambda: self._engine.abort(request_id))

    def publish(self, weights: Iterable[Mapping[str, Any]] | None, version: int) -> None:
        with self.standstill() as engine:
            engine.publish(weights, version)

    def sleep(self) -> None:
        with self.standstill() as engine:
            engine.sleep()

    def wake(self) -> None:
        with self.standstill() as engine:
            engine.wake()

    def admit_any_time(self) -> None:
        with self.standstill() as engine:
            engine.admit_any_time()

    def stats(self) -> dict[str, float]:
        """Also while it generates."""
        return self._engine.stats()

    @contextmanager
    def standstill(self) -> Iterator[RolloutEngine]:
        """The engine, for the calling thread alone until it leaves. Waits for the step that runs."""
        entered, left = threading.Event(), threading.Event()

        def stand() -> None:
            entered.set()
            left.wait()

        try:
            if not self._hand_over(stand):
                raise RolloutError(STOPPED)
            self._wait_for(entered)
            yield self._engine
        finally:
            left.set()

    def stop(self) -> None:
        """End what runs and the thread. Waits for the step that runs, at most `STOP_DEADLINE_S`."""
        self._hand_over(self._stop_asked.set)
        with self._lock:
            self._is_over = True
        self._thread.join(STOP_DEADLINE_S)
        if self._thread.is_alive():
            log.warning("the rollout engine's last step did not end within %.0f s", STOP_DEADLINE_S)

    def _hand_over(self, function: Callable[[], object]) -> bool:
        """Let the thread call it between two steps; whether the thread is there to do so.

        One pass late: requests that came or were cancelled just before reach the engine by then.
        """
        with self._lock:
            if not self._is_over:
                self._loop.call_soon_threadsafe(self._loop.call_soon, function)
            return not self._is_over

    def _wait_for(self, entered: threading.Event) -> None:
        deadline = time.monotonic() + self._step_deadline_s
        while not entered.wait(LOOK_S):
            if not self._thread.is_alive():
                raise RolloutError(STOPPED)
            if time.monotonic() > deadline:
                raise DeadlineError(f"the rollout engine did not end its step within {self._step_deadline_s:g} s")

    # From here on: in the engine's thread.

    def _run(self) -> None:
        try:
            with self._runner:  # which cancels what is left
                try:
                    self._runner.run(self._until_stopped())
                finally:
                    with self._lock:
                        self._is_over = True
        finally:
            with self._lock:
                left = list(self._unanswered)  # handed over too late for the loop to see them
            for answer in left:
                if not answer.done():
                    answer.set_exception(RolloutError(STOPPED))

    async def _until_stopped(self) -> None:
        await self._stop_asked.wait()


def is_cancelled() -> bool:
    """Whether the task that asks is being cancelled itself; else it was what it awaited."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _in_this_loop(on_token: OnToken | None) -> OnToken | None:
    if on_token is None:
        return None
    loop = asyncio.get_running_loop()

    def tell(token_id: int, log_prob: float) -> None:
        loop.call_soon_threadsafe(on_token, token_id, log_prob)

    return tell
