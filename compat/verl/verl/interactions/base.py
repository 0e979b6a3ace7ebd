"""The base class of interactions, as verl has it, and `VerlInteraction`, which runs one as an interaction of burnish:
each turn is given the row's `interaction_kwargs`, and a score, text or data of None is none."""

from collections.abc import Mapping
from typing import Any, ClassVar
from uuid import uuid4

from burnish.agents import interactions
from verl.tools.base_tool import taken


class BaseInteraction:
    def __init__(self, config: dict[str, Any]):
        self.config = config
        self.name: str = config.get("name", "interaction_agent")

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        return instance_id or str(uuid4())

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str | None, float | None, dict[str, Any] | None]:
        """Whether the conversation is over, the user's text, the score of the turn, and data."""
        raise NotImplementedError

    async def calculate_score(self, instance_id: str = "", **kwargs: Any) -> float:
        return 0.0

    async def finalize_interaction(self, instance_id: str = "", **kwargs: Any) -> None:
        pass

    @classmethod
    def burnish_class(cls) -> "type[VerlInteraction]":
        return type(cls.__name__, (VerlInteraction,), {"interaction_class": cls, "__module__": cls.__module__})


class VerlInteraction(interactions.BaseInteraction):
    """An interaction for verl, as one of burnish."""

    interaction_class: ClassVar[type[BaseInteraction]]

    def __init__(self, config: Mapping[str, Any]):
        super().__init__(config)
        self.interaction = self.interaction_class(dict(config))
        self._kwargs: dict[str, dict[str, Any]] = {}  # of the rows, by instance id

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        started = await self.interaction.start_interaction(instance_id, **kwargs)
        self._kwargs[started] = kwargs
        return started

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        respond = self.interaction.generate_response
        done, text, score, data = await respond(instance_id, messages, **taken(respond, **self._kwargs[instance_id]))
        return done, text or "", score or 0.0, data or {}

    async def calculate_score(self, instance_id: str, **kwargs: Any) -> float:
        score = self.interaction.calculate_score
        return await score(**taken(score, instance_id=instance_id))

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        self._kwargs.pop(instance_id, None)
        end = self.interaction.finalize_interaction
        await end(**taken(end, instance_id=instance_id))
