"""The rollout engine in a thread of its own, so that whoever serves stays responsive during forward passes.

`EngineThread` belongs to the event loop that makes it, the readers' loop; the thread runs a second loop, and only that
one touches the engine. Between the two, everything goes through `call_soon_threadsafe`.

The thread consumes what `submit`, `abort` and `stop` hand over. With nothing to generate it waits in its event loop;
each of these calls unblocks it. While it generates, it takes them between two steps. What requests have sampled in one
pass of its loop goes to the readers' loop in one piece, and each event from there to the request's own sink: `Token`s
as they are sampled, and at the end always exactly one `Completion` or exception.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from burnish.errors import RolloutError
from burnish.rollout.base import Completion, Request, RolloutEngine, Sampling

STOP_DEADLINE_S = 30.0  # for the step that runs when `stop` is called; a step cannot be interrupted

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Token:
    """One sampled token."""

    id: int
    log_prob: float


Event = Token | Completion | Exception
Sink = Callable[[Event], None]


class EngineThread:
    """Make it, and call its methods, in the readers' loop."""

    def __init__(self, engine: RolloutEngine):
        engine.admit_any_time()
        self.in_flight = 0  # requests without their last event
        self._engine = engine
        self._readers = asyncio.get_running_loop()
        # The factory keeps the runner from making its loop that of the calling thread.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._stop_asked = asyncio.Event()  # of the thread
        self._tasks: dict[str, asyncio.Task[None]] = {}  # of the thread
        self._outbox: list[tuple[Sink, Event]] = []  # of the thread
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="rollout-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._stopped

    @property
    def lost(self) -> bool:
        """Whether the engine can answer no more, although its thread runs. One that is just being replaced is not."""
        return self._engine.lost() is not None

    def submit(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, sink: Sink) -> None:
        """Generate; `sink` is called in the readers' loop with every event of this request."""
        if not self.alive:
            raise RolloutError("the engine has stopped")
        self.in_flight += 1
        self._loop.call_soon_threadsafe(self._begin, request_id, list(prompt_ids), sampling, sink)

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests; those that are done already are left as they are."""
        if self.alive:
            self._loop.call_soon_threadsafe(self._abort, list(request_ids))

    def abort_all(self) -> None:
        if self.alive:
            self._loop.call_soon_threadsafe(lambda: self._abort(list(self._tasks)))

    async def stop(self) -> None:
        """Abort what runs and end the thread. Waits for the step that runs, at most `STOP_DEADLINE_S`."""
        if self.alive:
            self.abort_all()
            self._stopped = True
            self._loop.call_soon_threadsafe(self._stop_asked.set)
        await asyncio.to_thread(self._thread.join, STOP_DEADLINE_S)
        if self._thread.is_alive():
            logger.warning("the engine's last step did not end within %.0f s", STOP_DEADLINE_S)

    # From here on: in the engine's thread.

    def _run(self) -> None:
        try:
            with self._runner:  # which cancels what is left
                self._runner.run(self._until_stopped())
        finally:
            self._flush()

    async def _until_stopped(self) -> None:
        await self._stop_asked.wait()
        while self._tasks:  # aborted, and so done after the step that runs
            await asyncio.gather(*self._tasks.values())

    def _begin(self, request_id: str, prompt_ids: list[int], sampling: Sampling, sink: Sink) -> None:
        self._tasks[request_id] = self._loop.create_task(self._generate(request_id, prompt_ids, sampling, sink))

    async def _generate(self, request_id: str, prompt_ids: list[int], sampling: Sampling, sink: Sink) -> None:
        last: Event
        try:
            last = await self._engine.generate(
                Request(prompt_ids, sampling, request_id=request_id),
                on_token=lambda token_id, log_prob: self._post(sink, Token(token_id, log_prob)),
            )
        except asyncio.CancelledError:
            last = RolloutError(f"request {request_id}: the engine has stopped")
        except Exception as error:  # noqa: BLE001 (rises at the request's reader)
            last = error
        del self._tasks[request_id]
        self._post(sink, last)

    def _abort(self, request_ids: list[str]) -> None:
        # A task that `_begin` made in this pass reaches the engine in the next one, before this.
        for request_id in request_ids:
            self._loop.call_soon(self._engine.abort, request_id)

    def _post(self, sink: Sink, event: Event) -> None:
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append((sink, event))

    def _flush(self) -> None:
        events, self._outbox = self._outbox, []
        if events:
            self._readers.call_soon_threadsafe(self._deliver, events)

    # In the readers' loop.

    def _deliver(self, events: list[tuple[Sink, Event]]) -> None:
        for sink, event in events:
            if not isinstance(event, Token):
                self.in_flight -= 1
            sink(event)
