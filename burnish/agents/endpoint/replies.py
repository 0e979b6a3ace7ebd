"""A sampled turn to the reply that a program reads: its text, its tool calls, and the JSON of both.

A stream here is the whole reply in one piece, since a turn is recorded before it is answered.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from burnish.agents.endpoint.requests import ChatRequest
from burnish.agents.parsers.base import ToolParser
from burnish.data.chat import Message, to_messages
from burnish.openai_wire.answers import ChatAnswer, Choice, Delta, Token, usage
from burnish.openai_wire.http import event
from burnish.rollout.base import Completion


class CallingAnswer(ChatAnswer):
    """A chat answer with tool calls."""

    def __init__(self, model: str, calls: list[dict[str, Any]]):
        super().__init__(model)
        self._calls = calls

    def choice(self, whole: Delta) -> dict[str, Any]:
        made = super().choice(whole)
        return made | {"message": made["message"] | {"content": whole.text or None, "tool_calls": self._calls}}

    def part(self, delta: Delta) -> dict[str, Any]:
        made = super().part(delta)
        calls = [{"index": i, **call} for i, call in enumerate(self._calls)]
        return made | {"delta": made["delta"] | {"tool_calls": calls}}


@dataclass
class ProgramReply:
    """One turn of the policy as the program reads it."""

    request: ChatRequest
    prompt_ids: list[int]
    choice: Choice
    calls: list[dict[str, Any]] = field(default_factory=list)
    malformed: int = 0

    @property
    def message(self) -> Message:
        """As it comes back in the next request."""
        calls = {"tool_calls": self.calls} if self.calls else {}
        return to_messages([{"role": "assistant", "content": self.choice.whole.text, **calls}])[0]

    def whole(self) -> dict[str, Any]:
        return self._answer().whole([self.choice], self._usage())

    def events(self) -> Iterator[str]:
        """The reply as server-sent events."""
        answer, extra = self._answer(), {"usage": None} if self.request.include_usage else {}
        yield event(answer.first_chunk(0) | extra)
        yield event(answer.chunk(self.choice.whole) | extra)
        if self.request.include_usage:
            yield event(answer.usage_chunk(self._usage()))
        yield "data: [DONE]\n\n"

    def _answer(self) -> ChatAnswer:
        return CallingAnswer(self.request.model, self.calls) if self.calls else ChatAnswer(self.request.model)

    def _usage(self) -> dict[str, int]:
        return usage([self.prompt_ids], [self.choice])


def read_reply(
    request: ChatRequest,
    prompt_ids: list[int],
    completion: Completion,
    choice: Choice,
    parser: ToolParser | None,
    text: str,
    identity: str,
) -> ProgramReply:
    """The reply of a completion. `text` is all of it with special tokens, which `parser` reads; `identity` names the
    turn in the ids of its calls, which templates may write into the next prompt: the same in every run."""
    for token_id, log_prob in zip(completion.token_ids, completion.log_probs, strict=True):
        choice.take(Token(token_id, log_prob))
    choice.take(completion)
    reply = ProgramReply(request, prompt_ids, choice)
    if parser is not None:
        parsed = parser.parse(text, request.tools)
        reply.calls = [
            {
                "id": call.call_id or f"call_{identity}_{i}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for i, call in enumerate(parsed.calls)
        ]
        reply.malformed = len(parsed.malformed)
        if reply.calls:  # otherwise the program reads all that was written
            choice.whole.text = parsed.content
            choice.whole.finish_reason = "tool_calls"
    return reply
