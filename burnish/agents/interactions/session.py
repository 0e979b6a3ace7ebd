"""One trajectory's interaction, with time limits and its results checked.

Returns an `InteractionTurn` for each turn of the policy. Whatever goes wrong in an interaction (it raises, takes too
long, or breaks the contract) is a `ToolFailure` that names the interaction and the method.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.agents.guarded import awaited, closing_limit, finite, within
from burnish.agents.interactions import BaseInteraction
from burnish.data.chat import Message
from burnish.errors import ToolFailure


@dataclass(frozen=True)
class InteractionTurn:
    """The user's answer to one turn of the policy, and what that turn earned."""

    done: bool
    text: str
    score: float
    data: dict[str, Any]


class InteractionSession:
    """`start` once, `respond` after each turn of the policy, `score` at the end, `close` always. `kwargs` are the row's
    `interaction_kwargs`, with its name. `timeout` is in seconds for each call; None waits for as long as it takes."""

    def __init__(
        self, interaction: BaseInteraction, kwargs: Mapping[str, Any], instance_id: str, timeout: float | None
    ):
        self._interaction, self._kwargs = interaction, kwargs
        self._instance_id, self._timeout = instance_id, timeout
        self._is_open = self._runs = False

    async def start(self) -> None:
        self._is_open = True  # from here on there may be something to finalize
        instance_id = await self._call("start_interaction", **self._kwargs)
        if not isinstance(instance_id, str):
            raise self._broke_contract("start_interaction", instance_id, "the instance id, a string")
        self._instance_id, self._runs = instance_id, True

    async def respond(self, messages: Sequence[Message]) -> InteractionTurn:
        own = [dict(message) for message in messages]  # what an interaction does to its list stays with it
        returned = await self._call("generate_response", own)
        if not isinstance(returned, tuple | list) or len(returned) != 4:
            raise self._broke_contract("generate_response", returned, "(done, text, turn_score, data)")
        done, text, score, data = returned
        kinds = (
            ("done", done, bool, "True or False"),
            ("text", text, str, "a string"),
            ("data", data, Mapping, "a mapping"),
        )
        for name, value, kind, expected in kinds:
            if not isinstance(value, kind):
                raise self._broke_contract("generate_response", value, expected, f"{name}=")
        return InteractionTurn(done, text, self._number("generate_response", score, "turn_score="), dict(data))

    async def score(self) -> float:
        return self._number("calculate_score", await self._call("calculate_score"), "score=")

    async def close(self) -> None:
        """Finalize what was started; nothing where nothing was, or at a second call."""
        self._timeout = closing_limit(self._timeout)
        was_open, self._is_open = self._is_open, False
        if was_open:
            try:
                await self._call("finalize_interaction")
            except ToolFailure:
                if self._runs:  # otherwise it follows from that of the start
                    raise

    async def _call(self, method: str, /, *arguments: Any, **kwargs: Any) -> Any:
        call = awaited(getattr(self._interaction, method), self._instance_id, *arguments, **kwargs)
        return await within(self._timeout, f"interaction {self._kwargs['name']}: {method}", call)

    def _number(self, method: str, value: Any, name: str) -> float:
        number = finite(value)
        if number is None:
            raise self._broke_contract(method, value, "a finite number", name)
        return number

    def _broke_contract(self, method: str, value: Any, expected: str, name: str = "") -> ToolFailure:
        shown = f"{name}{value!r:.200} ({type(value).__name__})"
        return ToolFailure(f"interaction {self._kwargs['name']}: {method} returned {shown}; expected {expected}")
