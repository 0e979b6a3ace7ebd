"""Sampled tokens to the JSON of an answer: whole, or in the chunks of a stream. The chunks add up to the whole.

A `Generation` is the sequences of one request, from the moment they are admitted to their last token or the client's
leaving. A `Choice` follows one of them: it consumes the engine's events and hands out `Delta`s. A shape, `ChatAnswer`
or `CompletionAnswer`, writes them down as /v1/chat/completions or /v1/completions does. Log-probs are the engine's, one
for each sampled token, those that ended the answer included; so they are as many as `completion_tokens`.
"""

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from burnish.rollout.base import Completion
from burnish.rollout.stops import UNFINISHED, decode
from burnish.serving.engine_thread import EngineThread, Event, Token
from burnish.serving.fields import stopping
from burnish.serving.loading import ServedModel
from burnish.serving.requests import Asked
from burnish.serving.text import TextStream


@dataclass(frozen=True)
class TokenEntry:
    """One sampled token, its log-prob, and where in the text it begins."""

    text: str
    log_prob: float
    offset: int


@dataclass
class Delta:
    """What is new of one choice."""

    index: int
    text: str = ""
    entries: list[TokenEntry] = field(default_factory=list)
    finish_reason: str | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.entries or self.finish_reason)


class Choice:
    """One sequence of a request."""

    def __init__(
        self, index: int, tokenizer: Any, special_ids: frozenset[int], stops: tuple[str, ...], log_probs: bool
    ):
        self.index = index
        self.whole = Delta(index)  # all deltas so far, in one
        self.tokens = 0
        self._tokenizer = tokenizer
        self._stream = TextStream(tokenizer, special_ids, stops)
        self._log_probs = log_probs
        self._before: list[int] = []  # the token before, for the spaces that decoders strip
        self._entries: list[TokenEntry] = []  # one goes out when the text before it has, a token late

    def take(self, event: Token | Completion) -> Delta:
        if isinstance(event, Completion):
            return self._delta(self._stream.finish(event.stop), event.finish_reason)
        self.tokens += 1
        delta = self._delta(self._stream.push(event.id))
        self._entries += [self._entry(event)] if self._log_probs else []
        return delta

    def _delta(self, text: str, finish_reason: str | None = None) -> Delta:
        self.whole.text += text
        self.whole.finish_reason = finish_reason
        length = len(self.whole.text)
        ready = [entry for entry in self._entries if finish_reason or entry.offset <= length]
        self._entries = self._entries[len(ready) :]
        # Tokens of a stop string begin where the text ends.
        entries = [replace(entry, offset=min(entry.offset, length)) for entry in ready]
        self.whole.entries += entries
        return Delta(self.index, text, entries, finish_reason)

    def _entry(self, token: Token) -> TokenEntry:
        """After `push`, which has decoded all tokens before this one."""
        before, both = decode(self._tokenizer, self._before), decode(self._tokenizer, [*self._before, token.id])
        text = both[len(before) :] if both.startswith(before) else ""
        self._before = [token.id]
        return TokenEntry(text or decode(self._tokenizer, [token.id]), token.log_prob, self._stream.length)


class Answer(ABC):
    """The names and numbers that all parts of one answer share."""

    prefix = ""
    kind = ""
    chunk_kind = ""

    def __init__(self, model: str):
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._head = {"created": int(time.time()), "model": model}

    def whole(self, choices: list[Choice], usage: dict[str, int]) -> dict[str, Any]:
        return self._object(self.kind, [self.choice(c.whole) for c in choices]) | {"usage": usage}

    def chunk(self, delta: Delta) -> dict[str, Any]:
        return self._object(self.chunk_kind, [self.part(delta)])

    def usage_chunk(self, usage: dict[str, int]) -> dict[str, Any]:
        return self._object(self.chunk_kind, []) | {"usage": usage}

    def first_chunk(self, index: int) -> dict[str, Any] | None:
        """What opens a choice in a stream, where something does."""
        return None

    @abstractmethod
    def choice(self, whole: Delta) -> dict[str, Any]:
        """A whole choice of an answer."""

    @abstractmethod
    def part(self, delta: Delta) -> dict[str, Any]:
        """The next part of a choice in a stream."""

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, **self._head, "choices": choices}


class ChatAnswer(Answer):
    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, whole: Delta) -> dict[str, Any]:
        return {"index": whole.index, "message": {"role": "assistant", "content": whole.text}} | self._end(whole)

    def part(self, delta: Delta) -> dict[str, Any]:
        return {"index": delta.index, "delta": {"content": delta.text} if delta.text else {}} | self._end(delta)

    def first_chunk(self, index: int) -> dict[str, Any]:
        opening = {"index": index, "delta": {"role": "assistant", "content": ""}} | self._end(Delta(index))
        return self._object(self.chunk_kind, [opening])

    def _end(self, delta: Delta) -> dict[str, Any]:
        entries = [
            {"token": e.text, "logprob": e.log_prob, "bytes": _bytes(e.text), "top_logprobs": []} for e in delta.entries
        ]
        return {"logprobs": {"content": entries} if entries else None, "finish_reason": delta.finish_reason}


class CompletionAnswer(Answer):
    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def choice(self, whole: Delta) -> dict[str, Any]:
        log_probs = {
            "tokens": [entry.text for entry in whole.entries],
            "token_logprobs": [entry.log_prob for entry in whole.entries],
            "top_logprobs": None,
            "text_offset": [entry.offset for entry in whole.entries],
        }
        return {
            "index": whole.index,
            "text": whole.text,
            "logprobs": log_probs if whole.entries else None,
            "finish_reason": whole.finish_reason,
        }

    def part(self, delta: Delta) -> dict[str, Any]:
        return self.choice(delta)


class Generation:
    """Starts generating when it is made. Read `deltas` to their end; `abort` where nobody reads any more."""

    def __init__(self, asked: Asked, model: ServedModel, engine: EngineThread, request_id: str):
        self.asked = asked
        self.choices: list[Choice] = []
        self._engine = engine
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._running: dict[int, str] = {}  # index of a choice → the engine's request
        for index, (prompt, sampling) in enumerate(asked.sequences()):
            choice = Choice(index, model.tokenizer, model.special_ids, sampling.stop, asked.log_probs)
            self.choices.append(choice)
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


def usage(prompts: list[list[int]], choices: list[Choice]) -> dict[str, int]:
    """Tokens as the engine counts them; a prompt once, however many answers it gets."""
    read, written = sum(map(len, prompts)), sum(choice.tokens for choice in choices)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _bytes(text: str) -> list[int] | None:
    """The UTF-8 of a token; None for a part of a character, whose bytes its text does not tell."""
    return None if UNFINISHED in text else list(text.encode())
