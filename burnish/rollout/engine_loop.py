"""A rollout engine in its own thread with an event loop, for a worker whose own loop must stay responsive.

`generate` may be awaited in any event loop, and the other methods be called in any thread. Weights and memory change
where the caller is (`publish`, `sleep`, `wake`), because what they wait for may be bound to its thread: the engine's
thread is paused meanwhile, between two steps. A step that hangs is not noticed here: it is a registered wait, and the
watchdog ends the process (`tracking/watchdog.py`).
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from burnish.errors import DeadlineError, EngineLost, RolloutError
from burnish.rollout.base import Completion, OnToken, Request, RolloutEngine
from burnish.waits import waiting

STEP_DEADLINE_S = 1800.0  # for an engine that does not say how long a step of it may take
GRACE_S = 90.0  # more than the watchdog's: a step that hangs has ended the process by then
STOP_DEADLINE_S = 30.0  # for the step that runs, at the end, when nobody wants its result any more
LOOK_S = 0.5  # between two looks at whether the thread still lives
STOPPED = "the rollout engine has stopped"

log = logging.getLogger(__name__)


class EngineLoop(RolloutEngine):
    """Generates with `engine`, which nobody else may step; `alongside`: while the publishing thread computes."""

    def __init__(self, engine: RolloutEngine, *, alongside: bool = False):
        self.context, self.vocabulary = engine.context, engine.vocabulary
        self.own_weights, self.runs_on = engine.own_weights, engine.runs_on
        self._engine, self._alongside = engine, alongside
        # The factory keeps the runner from making its loop that of the calling thread.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._stop_asked = asyncio.Event()  # of the thread
        self._outbox: dict[asyncio.AbstractEventLoop, list[tuple[Any, ...]]] = {}  # in the engine's thread
        self._lock = threading.Lock()  # for the three below, so that nothing is handed to a loop that has ended
        self._is_over = False
        self._why: str | None = None  # it is lost
        self._unanswered: set[Future[Completion]] = set()
        self._thread = threading.Thread(target=self._run, name="rollout-engine", daemon=True)
        self._thread.start()

    async def generate(self, request: Request, on_token: OnToken | None = None) -> Completion:
        post = partial(self._post, asyncio.get_running_loop(), on_token)
        work = self._engine.generate(request, on_token and post)
        with self._lock:
            if self._is_over:
                work.close()
                raise self._ended(f"request {request.request_id}: ")
            answer = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._unanswered.add(answer)
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            if is_cancelled():
                raise  # by its caller: the request is cancelled with it
            raise self._ended(f"request {request.request_id}: ") from None
        finally:
            with self._lock:
                self._unanswered.discard(answer)

    @property
    def in_flight(self) -> int:
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
            self._engine.pause()
            for reader in list(self._outbox):  # tokens of the weights before
                self._send(reader)
            entered.set()
            left.wait()

        limit_s = getattr(self._engine, "step_deadline_s", STEP_DEADLINE_S) + GRACE_S
        try:
            if not self._hand_over(stand):
                raise self._ended()
            with waiting("engine", "", "the rollout engine to pause", limit_s) as wait:
                while not entered.wait(LOOK_S):
                    if self._is_over:
                        raise self._ended()
                    if wait.age > limit_s:
                        raise DeadlineError(
                            f"the rollout engine was paused by another caller for more than {limit_s:g} s"
                        )
            yield self._engine
        finally:
            left.set()

    def lost(self) -> str | None:
        return self._why or self._engine.lost()

    def renewed(self) -> "EngineLoop":
        """In a new thread. The old one ends, if it has not yet: it may be the engine alone that is lost."""
        self._hand_over(self._stop_asked.set)
        return EngineLoop(self._engine.renewed(), alongside=self._alongside)

    def close(self, seconds: float = STOP_DEADLINE_S) -> None:
        """End what runs and the thread. Waits at most so long for the step that runs."""
        self._hand_over(self._stop_asked.set)
        with self._lock:
            self._is_over = True
        self._thread.join(seconds)
        if self._thread.is_alive():
            log.warning("the rollout engine's last step did not end within %.0f s", STOP_DEADLINE_S)

    def _ended(self, whose: str = "") -> RolloutError:
        """The error of callers that come too late."""
        if self._why is not None:
            return EngineLost(f"{whose}the rollout engine is lost: {self._why}")
        return RolloutError(whose + STOPPED)

    def _hand_over(self, function: Callable[[], object]) -> bool:
        """Let the thread call it between two steps; whether the thread is there to do so. One pass late: requests that
        came or were cancelled just before reach the engine by then."""
        with self._lock:
            if not self._is_over:
                self._loop.call_soon_threadsafe(self._loop.call_soon, function)
            return not self._is_over

    # From here on: in the engine's thread.

    def _post(self, reader: asyncio.AbstractEventLoop, *call: Any) -> None:
        """Have the reader's loop make this call. It is woken once a step, and before a request is answered."""
        if reader not in self._outbox:
            self._loop.call_soon(self._send, reader)
        self._outbox.setdefault(reader, []).append(call)

    def _send(self, reader: asyncio.AbstractEventLoop) -> None:
        if calls := self._outbox.pop(reader, None):
            reader.call_soon_threadsafe(_call_each, reader, calls)

    def _run(self) -> None:
        try:
            # The runner cancels what is left.
            with self._runner, self._engine.alongside() if self._alongside else nullcontext():
                try:
                    self._runner.run(self._stop_asked.wait())
                except BaseException as error:
                    with self._lock:
                        if not self._is_over:  # else nobody waits for it any more
                            self._why = f"its thread ended by {type(error).__name__}: {error}"
                    log.error("the rollout engine's thread ended", exc_info=error)
                finally:
                    with self._lock:
                        self._is_over = True
        finally:
            with self._lock:
                left = list(self._unanswered)  # handed over too late for the loop to see them
            for answer in left:
                answer.cancel()  # `generate` knows why


def is_cancelled() -> bool:
    """Whether the task that asks is being cancelled itself; else it was what it awaited."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _call_each(reader: asyncio.AbstractEventLoop, calls: list[tuple[Any, ...]]) -> None:
    """In the reader's loop: each by itself, for one that fails must not harm the others."""
    for call in calls:
        reader.call_soon(*call)
