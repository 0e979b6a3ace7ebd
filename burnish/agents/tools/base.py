"""The tool contract: what a tool is, what a call gives back, and how it says that something went wrong.

A tool is made once for a run; its state belongs to a trajectory and is kept by instance id. All methods are coroutines
on the one event loop of the run, so a tool that blocks must do so in a thread. What a tool raises ends the trajectory
(`ToolFailure`), except `ToolError`, whose text the model is shown.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolResponse:
    """What the model is shown after a call."""

    text: str = ""


Answer = tuple[ToolResponse, float, dict[str, Any]]  # of a call: the response, the reward of this step, and metrics


class ToolError(Exception):
    """Raised by a tool whose caller made a mistake: the model is shown the text, and the trajectory continues."""


class BaseTool(ABC):
    """Base of all tools. `config` is the entry's `config` in the YAML file, `tool_schema` what the model is shown.
    `places` is for a tool that few calls can use at a time: a call's time limit begins when it has its place."""

    places: asyncio.Semaphore | None = None

    def __init__(self, config: Mapping[str, Any], tool_schema: Mapping[str, Any]):
        self.config = config
        self.tool_schema = tool_schema

    @property
    def name(self) -> str:
        return str(self.tool_schema["function"]["name"])

    async def create(self, instance_id: str, **kwargs: Any) -> Any:  # noqa: B027 (most tools keep no state)
        """Begin a trajectory; `kwargs` are the row's `tools_kwargs.<name>.create_kwargs`. What it returns is unread."""

    @abstractmethod
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Answer:
        """One call; its metrics are numbers by name."""

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """The reward of the whole trajectory as this tool sees it."""
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:  # noqa: B027
        """End a trajectory."""
