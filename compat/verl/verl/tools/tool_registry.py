"""The tools of a run, for loops that call them themselves: each as an object with verl's methods."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

from burnish.agents import tools
from burnish.agents.environment import Environment
from burnish.agents.tools.load import load_tools
from burnish.errors import NotAvailable
from verl.tools.base_tool import BaseTool, PerCallTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

RUN: ContextVar[Environment] = ContextVar("run")  # what the current trajectory shares with others


class ToolListWrap:
    def __init__(self, tools: list[BaseTool]):
        self.tools = tools


class BurnishTool(BaseTool):
    """A tool of burnish, with verl's methods."""

    def __init__(self, tool: tools.BaseTool):
        super().__init__(dict(tool.config), OpenAIFunctionToolSchema.model_validate(tool.tool_schema))
        self.tool = tool

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        instance_id = instance_id or uuid4().hex
        await self.tool.create(instance_id, **kwargs.get("create_kwargs", kwargs))
        return instance_id, ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> tuple[Any, Any, Any]:
        response, reward, metrics = await self.tool.execute(instance_id, parameters)
        return ToolResponse(text=response.text), reward, metrics

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return await self.tool.calc_reward(instance_id)

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        await self.tool.release(instance_id)


def tools_of(environment: Environment) -> list[BaseTool]:
    """Those that the run has configured."""
    multi_turn = environment.settings.multi_turn
    return _listed(environment.tools) if multi_turn.tool_config_path or multi_turn.function_tool_path else []


def initialize_tools_from_config(tools_config_file: str) -> list[BaseTool]:
    """The tools of a YAML file. Those of the run's own file are made once for all trajectories."""
    if (environment := RUN.get(None)) is None:
        raise NotAvailable("tools outside a trajectory", "Load them where an agent loop is made.")
    settings = environment.settings
    if tools_config_file == settings.multi_turn.tool_config_path and not settings.multi_turn.function_tool_path:
        return _listed(environment.tools)
    parts: Mapping[str, Any] = {"retriever": lambda: environment.retriever, "sandbox": settings.sandbox}
    return _listed(load_tools(tools_config_file, **parts))


def _listed(found: Mapping[str, tools.BaseTool]) -> list[BaseTool]:
    return [tool.tool if isinstance(tool, PerCallTool) else BurnishTool(tool) for tool in found.values()]
