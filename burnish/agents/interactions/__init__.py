"""Interactions: another party that answers the policy's turns until it is satisfied.

An interaction is made once for a run; its state belongs to a trajectory and is kept by instance id. All methods are
coroutines on the one event loop of the run, so an interaction that blocks must do so in a thread. What it raises ends
the trajectory (`ToolFailure`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from burnish.data.chat import Message

__all__ = ["BaseInteraction"]


class BaseInteraction(ABC):
    """Base of all interactions. `config` is the entry's `config` in the YAML file."""

    def __init__(self, config: Mapping[str, Any]):
        self.config = config

    def check_row(self, **kwargs: Any) -> None:  # noqa: B027 (most take any row)
        """Raise a DataError that names the field where a row's `interaction_kwargs` cannot be used. Every row is asked
        before a model is loaded."""

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        """Begin a trajectory, whose id is returned; `kwargs` are the row's `interaction_kwargs`."""
        return instance_id or uuid4().hex

    @abstractmethod
    async def generate_response(
        self, instance_id: str, messages: list[Message], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Answer the last of `messages`, which is the policy's: whether the trajectory is over, the text of the user's
        turn (unread when it is over), the reward of the policy's turn, and metrics (numbers by name)."""

    async def calculate_score(self, instance_id: str, **kwargs: Any) -> float:
        """The reward of the whole trajectory as this interaction sees it."""
        return 0.0

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:  # noqa: B027 (most keep no state)
        """End a trajectory."""
