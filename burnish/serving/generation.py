"""The sequences of one request, from the moment they are admitted to their last token or the client's leaving.

Consumes an `Asked` and the engine's events; hands on `Delta`s as they come, and the choices they add up to.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from burnish.rollout.base import Completion
from burnish.serving.answers import Choice, Delta, usage
from burnish.serving.engine_thread import EngineThread, Event
from burnish.serving.loading import ServedModel
from burnish.serving.problems import bad, overloaded, stopping
from burnish.serving.requests import Asked


class Limits:
    """How many sequences the server holds: `running` at once, and `waiting` for their turn."""

    def __init__(self, running: int, waiting: int):
        self.running, self.waiting = running, waiting

    def check(self, wanted: int, in_flight: int) -> None:
        """Refuse what would have to wait behind too many others, or could never be held."""
        most = self.running + self.waiting
        if wanted > most:
            raise bad(f"{wanted} answers in one request; this server holds at most {most} at a time", code="too_many")
        if in_flight + wanted > most:
            raise overloaded(
                f"{in_flight} answers are being generated or wait for it, and this server holds at most {most}; "
                "try again later"
            )


class Generation:
    """Starts generating when it is made. Read `deltas` to their end; `abort` where nobody reads any more."""

    def __init__(self, asked: Asked, model: ServedModel, engine: EngineThread, request_id: str):
        self.asked = asked
        self.choices: list[Choice] = []
        self._engine = engine
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._running: dict[int, str] = {}  # index of a choice → the engine's request
        for index, (prompt, sampling) in enumerate(asked.sequences()):
            self.choices.append(Choice(index, model, sampling, asked.log_probs))
            self._running[index] = f"{request_id}/{index}"
            engine.submit(self._running[index], prompt, sampling, partial(self._take, index))

    def _take(self, index: int, event: Event) -> None:
        # Never full: it holds no more than the request's tokens, however slowly it is read.
        self._events.put_nowait((index, event))

    async def deltas(self) -> AsyncIterator[Delta]:
        """What is new, as it comes; waits for the engine, which always ends a sequence with a last event."""
        while self._running:
            index, event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            if isinstance(event, Completion):
                del self._running[index]
                if event.finish_reason == "abort":  # not by this reader, which would have gone
                    raise stopping()
            delta = self.choices[index].take(event)
            if delta:
                yield delta

    async def finish(self) -> None:
        async for _ in self.deltas():
            pass

    def usage(self) -> dict[str, int]:
        return usage(self.asked.prompts, self.choices)

    def abort(self) -> None:
        """End what still runs."""
        self._engine.abort(list(self._running.values()))
