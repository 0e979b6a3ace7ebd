"""The rollout engine in its own thread, so that a server stays responsive during forward passes.

`EngineThread` belongs to the event loop that makes it, the readers' loop; only the loop of its thread touches the
engine, and takes `submit`, `abort` and `stop` between two steps. A request's own sink gets `Token`s as they are
sampled, and at the end always exactly one `Completion` or exception.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from burnish.errors import DeadlineError, RolloutError
from burnish.loop_thread import LoopThread
from burnish.openai_wire.answers import Token
from burnish.rollout.base import Completion, Request, RolloutEngine, Sampling

STOP_DEADLINE_S = 30.0  # for the step that runs when `stop` is called; a step cannot be interrupted
CLOSE_S = 1.0  # for the thread to end, once nothing runs

logger = logging.getLogger(__name__)

Event = Token | Completion | Exception
Sink = Callable[[Event], None]


class EngineThread:
    """Make it, and call its methods, in the readers' loop."""

    def __init__(self, engine: RolloutEngine):
        engine.admit_any_time()
        self.in_flight = 0  # requests without their last event
        self._engine = engine
        self._readers = asyncio.get_running_loop()
        self._thread = LoopThread("the engine's thread", self._flush, "rollout-engine", "engine", CLOSE_S)
        self._tasks: dict[str, asyncio.Task[None] | None] = {}  # in the engine's thread
        self._outbox: list[tuple[Sink, Event]] = []  # in the engine's thread
        self.alive = True

    @property
    def lost(self) -> bool:
        """Whether the engine can no longer answer although its thread runs; not while it is being replaced."""
        return self._engine.lost() is not None

    def submit(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, sink: Sink) -> None:
        """Generate; `sink` is called in the readers' loop with every event of this request."""
        if not self.alive:
            raise RolloutError("the engine has stopped")
        self.in_flight += 1
        self._thread.run(self._generate(request_id, list(prompt_ids), sampling, sink))

    def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """End requests (None: all); those that are done already are left as they are."""
        if self.alive:
            self._thread.run(self._abort(request_ids))

    async def stop(self) -> None:
        """Abort what runs and end the thread. Waits for the current step, at most `STOP_DEADLINE_S`."""
        if not self.alive:
            return
        self.alive = False
        try:
            await asyncio.wait([asyncio.wrap_future(self._thread.run(self._drain()))], timeout=STOP_DEADLINE_S)
            await asyncio.to_thread(self._thread.close)
        except DeadlineError:
            logger.warning("the engine's last step did not end within %.0f s", STOP_DEADLINE_S)

    # From here on: in the engine's thread.

    async def _generate(self, request_id: str, prompt_ids: list[int], sampling: Sampling, sink: Sink) -> None:
        last: Event
        self._tasks[request_id] = asyncio.current_task()
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

    async def _abort(self, request_ids: Sequence[str] | None) -> None:
        # A request submitted before has reached the engine: tasks of a loop begin in the order they were made.
        for request_id in list(self._tasks) if request_ids is None else request_ids:
            self._engine.abort(request_id)

    async def _drain(self) -> None:
        await self._abort(None)
        while running := [task for task in self._tasks.values() if task]:
            await asyncio.gather(*running)

    def _post(self, sink: Sink, event: Event) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._send)
        self._outbox.append((sink, event))

    def _send(self) -> None:
        events, self._outbox = self._outbox, []
        if events:
            self._readers.call_soon_threadsafe(self._deliver, events)

    async def _flush(self) -> None:
        self._send()

    # In the readers' loop.

    def _deliver(self, events: list[tuple[Sink, Event]]) -> None:
        for sink, event in events:
            if not isinstance(event, Token):
                self.in_flight -= 1
            sink(event)
