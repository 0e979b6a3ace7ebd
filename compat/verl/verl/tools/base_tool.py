"""The base class of tools, as verl has it, and `PerCallTool`, which runs one as a tool of burnish.

Each call creates an instance, executes it, asks for its reward and releases it. What a tool raises is shown to the
model as `Error when executing tool: …`. The reward of the trajectory (`tool_score`) is that of its last call; verl's
own loop never asks for it.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar
from uuid import uuid4

from burnish.agents import tools
from burnish.agents.guarded import finite
from burnish.agents.tools.base import Answer
from burnish.errors import BurnishError, ConfigError, NotAvailable
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse


def taken(function: Callable[..., Any], /, **offered: Any) -> dict[str, Any]:
    """Those of the arguments that the function takes."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return offered
    return {name: value for name, value in offered.items() if name in parameters}


@contextmanager
def shown_to_model() -> Iterator[None]:
    """What a tool raises, as a mistake of its caller."""
    try:
        yield
    except BurnishError:
        raise
    except Exception as error:
        raise tools.ToolError(f"Error when executing tool: {error}") from error


class BaseTool:
    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None):
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        self.name = self.tool_schema.function.name

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        if getattr(self, "tool_schema", None) is None:
            raise ConfigError(f"tool_schema is missing, and {type(self).__name__} has none of its own: add one")
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        return instance_id or str(uuid4()), ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> tuple[Any, Any, Any]:
        return ToolResponse(), 0.0, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        pass

    @classmethod
    def burnish_class(cls) -> "type[PerCallTool]":
        return type(cls.__name__, (PerCallTool,), {"tool_class": cls, "__module__": cls.__module__})


class AgentData:
    """What a tool may read of its trajectory; `extra_fields` is the tool's own to write."""

    def __init__(self, request_id: str, tools_kwargs: dict[str, Any]):
        self.request_id, self.tools_kwargs = request_id, tools_kwargs
        self.extra_fields: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        raise NotAvailable(f"agent_data.{name}", "A tool has its request_id, tools_kwargs and extra_fields.")


class PerCallTool(tools.BaseTool):
    """A tool for verl, as one of burnish."""

    tool_class: ClassVar[type[BaseTool]]

    def __init__(self, config: Mapping[str, Any], tool_schema: Mapping[str, Any]):
        schema = OpenAIFunctionToolSchema.model_validate(tool_schema) if tool_schema else None
        self.tool = self.tool_class(config=dict(config), tool_schema=schema)
        super().__init__(config, self.tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True))
        self._data: dict[str, AgentData] = {}
        self._rewards: dict[str, float] = {}

    async def create(self, instance_id: str, **kwargs: Any) -> None:
        self._data[instance_id] = AgentData(instance_id, {self.name: {"create_kwargs": kwargs}})
        self._rewards[instance_id] = 0.0

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Answer:
        data = self._data[instance_id]
        given = data.tools_kwargs[self.name]["create_kwargs"]
        offered = {**given, "create_kwargs": given, "instance_id": uuid4().hex}
        with shown_to_model():
            created = await self.tool.create(**taken(self.tool.create, **offered))
        own_id = (created[0] if isinstance(created, tuple) else created) or offered["instance_id"]
        try:
            with shown_to_model():
                further = taken(self.tool.execute, **kwargs, agent_data=data)
                response, reward, metrics = await self.tool.execute(own_id, parameters, **further)
            self._rewards[instance_id] = finite(await self.tool.calc_reward(own_id)) or 0.0
        finally:
            await self.tool.release(own_id)
        if isinstance(response, ToolResponse):
            if response.image or response.video:
                raise NotAvailable("images and videos of tools", "Return text.")
            response = response.text or ""
        return response, reward, metrics

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return self._rewards[instance_id]

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self._data.pop(instance_id, None)
        self._rewards.pop(instance_id, None)
