"""The calls of one trajectory as a tree of conversations, each with the tokens that were read and sampled.

A call whose messages begin with those of an earlier call and the exact reply to it continues that conversation; any
other begins a new one, also with replies that the policy never gave, since there are no tokens for them. A trajectory
is one sequence, so one path of the tree is trained: the one with the most calls, among equals the last.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from burnish.agents.server import Transcript
from burnish.data.chat import Message


@dataclass(frozen=True, eq=False)
class AnsweredCall:
    """The conversation up to the end of the reply."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    transcript: Transcript
    has_ended: bool  # the reply's last token ended it

    @property
    def calls(self) -> int:
        return len(self.transcript.turns)

    @cached_property
    def said(self) -> list[tuple[Any, ...]]:
        return [_identity(message) for message in self.messages]


class ConversationTree:
    def __init__(self) -> None:
        self.turns: list[AnsweredCall] = []

    def before(self, messages: Sequence[Message], tools: list[dict[str, Any]]) -> AnsweredCall | None:
        """The call that one with these messages continues: the longest such conversation, the latest of several."""
        asked = [_identity(message) for message in messages]
        found = [
            turn
            for turn in self.turns
            if len(turn.said) < len(asked)
            and turn.tools == tools
            and turn.said == asked[: len(turn.said)]
            and all(message["role"] != "assistant" for message in messages[len(turn.messages) :])
        ]
        return max(reversed(found), key=lambda turn: len(turn.messages), default=None)

    @property
    def trained(self) -> AnsweredCall | None:
        """The end of the path that is trained; None if no call was answered."""
        return max(reversed(self.turns), key=lambda turn: turn.calls, default=None)

    @property
    def left_out(self) -> int:
        """Answered calls that are not on that path."""
        return len(self.turns) - (self.trained.calls if self.trained else 0)


def _identity(message: Message) -> tuple[Any, ...]:
    """What makes a message the same when it is sent back; clients add and drop empty fields."""
    calls = [
        (call.get("id"), call["function"]["name"], json.dumps(call["function"].get("arguments"), sort_keys=True))
        for call in message.get("tool_calls", ())
    ]
    return (message["role"], message["content"], calls, message.get("tool_call_id"), message.get("name"))
