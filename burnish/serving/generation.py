"""One request while it is generated: its sequences, from admission to their last token or the client's leaving."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from burnish.openai_wire.answers import AnswerFormat, Choice, Delta, usage
from burnish.openai_wire.fields import stopping
from burnish.openai_wire.http import as_api_error, event
from burnish.rollout.base import Completion
from burnish.serving.engine_thread import EngineThread, Event
from burnish.serving.loading import ServedModel
from burnish.serving.requests import ServeRequest

USAGE = "burnish.usage"  # the key in a request's scope under which its token counts are left for the access log


class ServedGeneration:
    """Starts generating when it is made. Read `deltas` to their end; `abort` if nobody reads any more."""

    def __init__(self, request: ServeRequest, model: ServedModel, engine: EngineThread, request_id: str):
        self.request = request
        self.choices: list[Choice] = []
        self._engine = engine
        # Unbounded, but it holds no more than the request's tokens, however slowly it is read.
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._running: dict[int, str] = {}  # index of a choice → the engine's request
        for index, (prompt, sampling) in enumerate(request.sequences()):
            choice = Choice(index, model.tokenizer, model.special_ids, sampling.stop, request.log_probs)
            self.choices.append(choice)
            self._running[index] = f"{request_id}/{index}"
            engine.submit(self._running[index], prompt, sampling, partial(self._take, index))

    def _take(self, index: int, event: Event) -> None:
        self._events.put_nowait((index, event))

    async def deltas(self) -> AsyncIterator[Delta]:
        """What is new, as it comes; waits for the engine, which always ends a sequence with a last event."""
        while self._running:
            index, event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            if isinstance(event, Completion):
                del self._running[index]
                if event.finish_reason == "abort":  # not by this reader, which would no longer be here
                    raise stopping()
            delta = self.choices[index].take(event)
            if delta:
                yield delta

    async def finish(self) -> None:
        async for _ in self.deltas():
            pass

    def usage(self) -> dict[str, int]:
        return usage(self.request.prompts, self.choices)

    def abort(self) -> None:
        """End what still runs."""
        self._engine.abort(list(self._running.values()))


class EventStream(StreamingResponse):
    """Server-sent events of one answer."""

    def __init__(self, generation: ServedGeneration, answer: AnswerFormat):
        self._generation, self._answer = generation, answer
        super().__init__(self._events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # also if the client has left
            scope[USAGE] = self._generation.usage()
            self._generation.abort()

    async def _events(self) -> AsyncIterator[str]:
        generation, answer = self._generation, self._answer
        extra = {"usage": None} if generation.request.include_usage else {}
        try:
            for choice in generation.choices:
                if opening := answer.first_chunk(choice.index):
                    yield event(opening | extra)
            async for delta in generation.deltas():
                yield event(answer.chunk(delta) | extra)
        except Exception as error:  # noqa: BLE001 (the boundary: the status is sent, so it goes into the stream)
            yield event(as_api_error(error).body)
            return
        if generation.request.include_usage:
            yield event(answer.usage_chunk(generation.usage()))
        yield "data: [DONE]\n\n"
