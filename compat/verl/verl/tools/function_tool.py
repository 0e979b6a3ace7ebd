"""`@function_tool("name", schema=…)`: burnish's decorator with verl's arguments and returns. What a function raises is
shown to the model."""

import functools
import inspect
import json
from collections.abc import Callable
from typing import Any

from burnish.agents import tools
from burnish.agents.tools.function import FunctionTool
from burnish.agents.tools.schema import check_schema
from burnish.errors import NotAvailable
from verl.tools.base_tool import shown_to_model
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

__all__ = ["FunctionTool", "function_tool", "normalize_function_tool_return"]


def function_tool(
    name: str | Callable[..., Any] | None = None, *, schema: OpenAIFunctionToolSchema | dict[str, Any] | None = None
) -> Any:
    """Decorator, with or without arguments; without a `schema` it comes from signature and docstring."""
    if callable(name):
        return function_tool()(name)

    def decorate(function: Callable[..., Any]) -> FunctionTool:
        own = _with_text(function)
        if schema is None:
            made: FunctionTool = tools.function_tool(own, name=name)
            return made
        given = schema if isinstance(schema, dict) else schema.model_dump(exclude_unset=True, exclude_none=True)
        checked = check_schema(given, f"@function_tool {function.__module__}.{function.__qualname__}")
        checked["function"] |= {"name": name or checked["function"]["name"]}
        return FunctionTool(own, checked)

    return decorate


def _with_text(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its result as text, or as text, reward and metrics where it has these."""

    def plain(returned: Any) -> Any:
        response, reward, metrics = normalize_function_tool_return(returned)
        if response.image or response.video:
            raise NotAvailable("images and videos of tools", "Return text.")
        text = response.text or ""
        return (text, reward, metrics) if reward or metrics else text

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        with shown_to_model():
            returned = function(*arguments, **named)
        return plain(returned)

    @functools.wraps(function)
    async def awaited(*arguments: Any, **named: Any) -> Any:
        with shown_to_model():
            returned = await function(*arguments, **named)
        return plain(returned)

    return awaited if inspect.iscoroutinefunction(function) else called


def normalize_function_tool_return(ret: Any) -> tuple[ToolResponse, float, dict[str, Any]]:
    """Response, reward and metrics, of which a function may leave out the last or the last two."""
    parts = ret if isinstance(ret, tuple) else (ret,)
    if not 1 <= len(parts) <= 3:
        raise TypeError(f"a function tool returned {len(parts)} values: return the response, a reward and metrics")
    response, reward, metrics = (*parts, None, None)[:3]
    if isinstance(response, dict):
        response = json.dumps(response, ensure_ascii=False)
    if not isinstance(response, ToolResponse):
        response = ToolResponse(text=str(response))
    return response, float(reward or 0.0), dict(metrics or {})
