"""Sampled tokens to the JSON of an answer: whole, or in the chunks of a stream, which add up to the whole.

A `Choice` follows one sequence; a format writes its `Delta`s. There is one log-prob for each sampled token, including
those that ended the answer, so there are as many as `completion_tokens`.
"""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from burnish.openai_wire.text import TextStream
from burnish.rollout.base import Completion
from burnish.rollout.stops import UNFINISHED, decode


@dataclass(frozen=True)
class Token:
    id: int
    log_prob: float


@dataclass(frozen=True)
class TokenEntry:
    """A token as text, its log-prob, and where in the answer it begins."""

    text: str
    log_prob: float
    offset: int


@dataclass
class Delta:
    index: int
    text: str = ""
    entries: list[TokenEntry] = field(default_factory=list)
    finish_reason: str | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.entries or self.finish_reason)


class Choice:
    def __init__(
        self, index: int, tokenizer: Any, special_ids: frozenset[int], stops: tuple[str, ...], log_probs: bool
    ):
        self.index = index
        self.whole = Delta(index)  # all deltas so far, in one
        self.tokens = 0
        self._tokenizer = tokenizer
        self._stream = TextStream(tokenizer, special_ids, stops)
        self._log_probs = log_probs
        self._before: list[int] = []  # the previous token, for the spaces that decoders strip
        self._entries: list[TokenEntry] = []  # each is sent once the text before it was, a token late

    def take(self, event: Token | Completion) -> Delta:
        if isinstance(event, Completion):
            return self._delta(self._stream.finish(event.stop), event.finish_reason)
        self.tokens += 1
        delta = self._delta(self._stream.push(event.id))
        if self._log_probs:  # after `push`, which has decoded all tokens before this one
            before, both = decode(self._tokenizer, self._before), decode(self._tokenizer, [*self._before, event.id])
            text = both[len(before) :] if both.startswith(before) else ""
            text = text or decode(self._tokenizer, [event.id])
            self._before = [event.id]
            self._entries.append(TokenEntry(text, event.log_prob, self._stream.length))
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


class AnswerFormat(ABC):
    prefix = kind = chunk_kind = ""

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

    def part(self, delta: Delta) -> dict[str, Any]:
        """The next part of a choice in a stream."""
        return self.choice(delta)

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, **self._head, "choices": choices}


class ChatAnswer(AnswerFormat):
    """`calls` are tool calls, of the one choice that there is then."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, calls: Sequence[dict[str, Any]] = ()):
        super().__init__(model)
        self._calls = calls

    def choice(self, whole: Delta) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": whole.text}
        if self._calls:
            message |= {"content": whole.text or None, "tool_calls": self._calls}
        return {"index": whole.index, "message": message} | self._end(whole)

    def part(self, delta: Delta) -> dict[str, Any]:
        new: dict[str, Any] = {"content": delta.text} if delta.text else {}
        if self._calls:
            new["tool_calls"] = [{"index": i, **call} for i, call in enumerate(self._calls)]
        return {"index": delta.index, "delta": new} | self._end(delta)

    def first_chunk(self, index: int) -> dict[str, Any]:
        opening = {"index": index, "delta": {"role": "assistant", "content": ""}} | self._end(Delta(index))
        return self._object(self.chunk_kind, [opening])

    def _end(self, delta: Delta) -> dict[str, Any]:
        entries = [
            {
                "token": e.text,
                "logprob": e.log_prob,
                # None for a part of a character, whose text does not show its bytes.
                "bytes": None if UNFINISHED in e.text else list(e.text.encode()),
                "top_logprobs": [],
            }
            for e in delta.entries
        ]
        return {"logprobs": {"content": entries} if entries else None, "finish_reason": delta.finish_reason}


class CompletionAnswer(AnswerFormat):
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


def usage(prompts: list[list[int]], choices: list[Choice]) -> dict[str, int]:
    """Tokens as the engine counts them; a prompt once, however many answers it gets."""
    read, written = sum(map(len, prompts)), sum(choice.tokens for choice in choices)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
