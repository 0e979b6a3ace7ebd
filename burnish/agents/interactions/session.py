"""One trajectory's interaction: picked by the row, with time limits, and its results checked.

Consumes the run's interactions and a row's `interaction_kwargs`; returns an `InteractionTurn` for each turn of the
policy. Whatever goes wrong in an interaction (it raises, takes too long, or breaks the contract) is a `ToolFailure`
that names the interaction and the method.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.agents.guarded import awaited, closing_limit, finite, within
from burnish.agents.interactions.base import BaseInteraction
from burnish.data.chat import Message
from burnish.errors import ToolFailure
from burnish.user_code import listed, nearest


@dataclass(frozen=True)
class InteractionTurn:
    """The user's answer to one turn of the policy, and what that turn earned."""

    done: bool
    text: str
    score: float
    data: dict[str, Any]


class InteractionSession:
    """`start` once, `respond` after each turn of the policy, `score` at the end, `close` always.

    `timeout` is in seconds for each call of the interaction; None waits for as long as it takes.
    """

    def __init__(self, interactions: Mapping[str, BaseInteraction], instance_id: str, timeout: float | None):
        self._interactions = interactions
        self._instance_id = instance_id
        self._timeout = timeout
        self._name = ""
        self._started: BaseInteraction | None = None
        self._runs = False

    async def start(self, kwargs: Mapping[str, Any]) -> None:
        """Pick the interaction that `kwargs` name, and begin."""
        name = kwargs.get("name")
        interaction = self._interactions.get(name) if isinstance(name, str) else None
        if interaction is None:
            raise ToolFailure(unknown_name(name, self._interactions))
        self._name = str(name)
        self._started = interaction  # from here on there may be something to finalize
        instance_id = await self._call("start_interaction", **kwargs)
        if not isinstance(instance_id, str):
            raise self._broke_contract(
                "start_interaction", f"{_shown(instance_id)}; expected the instance id, a string"
            )
        self._instance_id, self._runs = instance_id, True

    async def respond(self, messages: Sequence[Message]) -> InteractionTurn:
        """The answer to the last of `messages`, which is the policy's."""
        own = [dict(message) for message in messages]  # what an interaction does to its list stays with it
        returned = await self._call("generate_response", own)
        if not isinstance(returned, tuple | list) or len(returned) != 4:
            raise self._broke_contract(
                "generate_response", f"{_shown(returned)}; expected (done, text, turn_score, data)"
            )
        done, text, score, data = returned
        kinds = (
            ("done", done, bool, "True or False"),
            ("text", text, str, "a string"),
            ("data", data, Mapping, "a mapping"),
        )
        for name, value, kind, expected in kinds:
            if not isinstance(value, kind):
                raise self._broke_contract("generate_response", f"{name}={_shown(value)}; expected {expected}")
        return InteractionTurn(done, text, self._number("generate_response", "turn_score", score), dict(data))

    async def score(self) -> float:
        """The reward of the trajectory as a whole."""
        return self._number("calculate_score", "score", await self._call("calculate_score"))

    async def close(self) -> None:
        """Finalize what was started; nothing where nothing was, or at a second call."""
        self._timeout = closing_limit(self._timeout)
        if self._started is not None:
            try:
                await self._call("finalize_interaction")
            except ToolFailure:
                if self._runs:  # otherwise it follows from that of the start
                    raise
            finally:
                self._started = None

    async def _call(self, method: str, /, *arguments: Any, **kwargs: Any) -> Any:
        if self._started is None:
            raise RuntimeError("the interaction was not started, or is closed")
        call = awaited(getattr(self._started, method), self._instance_id, *arguments, **kwargs)
        return await within(self._timeout, f"interaction {self._name}: {method}", call)

    def _number(self, method: str, what: str, value: Any) -> float:
        number = finite(value)
        if number is None:
            raise self._broke_contract(method, f"{what}={_shown(value)}; expected a finite number")
        return number

    def _broke_contract(self, method: str, returned: str) -> ToolFailure:
        return ToolFailure(f"interaction {self._name}: {method} returned {returned}")


def unknown_name(name: Any, known: Mapping[str, BaseInteraction]) -> str:
    """The message for a row whose `interaction_kwargs.name` is none of the run's interactions."""
    if not isinstance(name, str):
        return f"interaction_kwargs.name={name!r:.100}: a row names one of its run's interactions: {listed(known)}"
    return (
        f"interaction_kwargs.name={name:.100}: there is no such interaction{nearest(name, known)} (this run has "
        f"{listed(known)}). Name your own in the YAML file of "
        "actor_rollout_ref.rollout.multi_turn.interaction_config_path"
    )


def _shown(value: Any) -> str:
    return f"{value!r:.200} ({type(value).__name__})"
