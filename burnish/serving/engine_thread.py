"""The rollout engine in its own thread (`rollout/engine_loop.py`), so that a server stays responsive during forward
passes: a request's own sink gets `Token`s as they are sampled, and at the end always exactly one `Completion` or
exception.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from burnish.errors import RolloutError
from burnish.openai_wire.answers import Token
from burnish.rollout.base import Completion, Request, RolloutEngine, Sampling
from burnish.rollout.engine_loop import STOP_DEADLINE_S, EngineLoop

Event = Token | Completion | Exception
Sink = Callable[[Event], None]


class EngineThread:
    """Make it, and call its methods, in the readers' loop, where sinks are called too."""

    def __init__(self, engine: RolloutEngine):
        engine.admit_any_time()
        self._engine = EngineLoop(engine)
        self._tasks: dict[str, asyncio.Task[None]] = {}  # of requests without their last event
        self.alive = True

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    @property
    def lost(self) -> bool:
        """Whether the engine can no longer answer although its thread runs; not while it is being replaced."""
        return self._engine.lost() is not None

    def submit(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, sink: Sink) -> None:
        if not self.alive:
            raise RolloutError("the engine has stopped")
        request = Request(list(prompt_ids), sampling, request_id=request_id)
        self._tasks[request_id] = asyncio.create_task(self._generate(request, sink))

    def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """End requests (None: all); those that are done already are left as they are."""
        for request_id in list(self._tasks) if request_ids is None else request_ids:
            # A pass late: a request that was submitted just before is with the engine by then.
            asyncio.get_running_loop().call_soon(self._engine.abort, request_id)

    async def stop(self) -> None:
        """Abort what runs and end the thread. Waits for the step that runs, at most `STOP_DEADLINE_S`."""
        if not self.alive:
            return
        self.alive = False
        self.abort()
        deadline = time.monotonic() + STOP_DEADLINE_S
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=STOP_DEADLINE_S)
        self._engine.close(max(deadline - time.monotonic(), 0.1))  # not in a thread: none starts while Python exits

    async def _generate(self, request: Request, sink: Sink) -> None:
        last: Event
        try:
            last = await self._engine.generate(request, lambda token_id, log_prob: sink(Token(token_id, log_prob)))
        except Exception as error:  # noqa: BLE001 (rises at the request's reader)
            last = error
        del self._tasks[request.request_id]
        sink(last)
