"""`@function_tool`: a typed Python function is a tool, and its schema comes from its signature and docstring.

    @function_tool
    def population(city: str, year: int = 2020) -> int:
        '''How many people live in a city.

        city: its name in English
        '''

Parameters are str, int, float, bool, list, list[…], dict, dict[str, …], Literal[…], or one of these | None. Those with
a default are optional. An `async def` runs on the event loop, a plain `def` in its own thread, so that it may block;
one that still runs when its time is up cannot be ended and is left behind. The model is shown what it returns: text as
it is, anything else as JSON. Exceptions end the trajectory, except ToolError and those in `observes`, whose text the
model is shown. A function that cannot be a tool is a ConfigError that names the parameter.
"""

import contextlib
import functools
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

from burnish.agents.guarded import in_thread
from burnish.agents.tools.base import BaseTool, ToolError, ToolResponse
from burnish.agents.tools.docstring import read_docstring
from burnish.agents.tools.schema import function_schema
from burnish.errors import ConfigError

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
_SUPPORTED = "str, int, float, bool, list[…], dict[str, …], Literal[…], or one of these | None"


class FunctionTool(BaseTool):
    """A function as a tool. It can still be called as the function it is."""

    def __init__(
        self, function: Callable[..., Any], tool_schema: Mapping[str, Any], observes: tuple[type[Exception], ...] = ()
    ):
        super().__init__({}, tool_schema)
        functools.update_wrapper(self, function)
        self.function, self.observes = function, observes

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    def with_schema(self, tool_schema: Mapping[str, Any]) -> "FunctionTool":
        """The same function, described to the model in other words."""
        return FunctionTool(self.function, tool_schema, self.observes)

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        if kwargs:
            raise TypeError(
                f"tools_kwargs.{self.name}.execute_kwargs has {', '.join(kwargs)}, but a function takes its arguments "
                "only from the model; a subclass of BaseTool can take them"
            )
        call = functools.partial(self.function, **parameters)
        try:
            if inspect.iscoroutinefunction(self.function):
                result = await call()
            else:
                result = await in_thread(call, f"tool {self.function.__name__}")
                result = await result if inspect.isawaitable(result) else result
        except self.observes as error:
            raise ToolError(str(error) or type(error).__name__) from error
        if isinstance(result, ToolResponse):
            return result, 0.0, {}
        try:
            text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            kind = type(result).__name__
            raise TypeError(f"{self.name} returned a {kind} that is neither text nor JSON: {error}") from error
        return ToolResponse(text), 0.0, {}


def function_tool(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    observes: tuple[type[Exception], ...] = (),
) -> Any:
    """Decorator, with or without arguments; `name` and `description` take the place of the function's own."""
    if function is None:
        return functools.partial(function_tool, name=name, description=description, observes=observes)
    if not inspect.isroutine(function):
        raise ConfigError(f"@function_tool needs a function, but {function!r:.100} is not one; derive from BaseTool")
    chosen = tuple(observes) if isinstance(observes, tuple | list) else (observes,)
    for kind in chosen:
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            raise ConfigError(f"@function_tool {_about(function)}: observes={observes!r}: name classes of exceptions")
    return FunctionTool(function, schema_of(function, name, description), chosen)


def schema_of(function: Callable[..., Any], name: str | None = None, description: str | None = None) -> dict[str, Any]:
    """What the model is shown of a function."""
    about = f"@function_tool {_about(function)}"
    signature = inspect.signature(function).parameters
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise ConfigError(f"{about}: its annotations cannot be read ({error}); import the names they use") from error
    summary, texts = read_docstring(function.__doc__, signature.keys())
    properties, required = {}, []
    for parameter in signature.values():
        properties[parameter.name] = _property(parameter, hints, texts, about)
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
    return function_schema(
        name or function.__name__, summary if description is None else description, properties, required
    )


def _property(
    parameter: inspect.Parameter, hints: Mapping[str, Any], texts: Mapping[str, str], about: str
) -> dict[str, Any]:
    name = parameter.name
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise ConfigError(f"{about}: {parameter} has no names that a model could give; write out the parameters")
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise ConfigError(f"{about}: {name} can only be given by position, and a model gives names; remove the /")
    if name not in hints:
        raise ConfigError(f"{about}: {name} has no type; annotate it, as in {name}: str (one of {_SUPPORTED})")
    schema = _type_schema(hints[name], f"{about}: {name}")
    if texts.get(name):
        schema["description"] = texts[name]
    if parameter.default not in (inspect.Parameter.empty, None):
        with contextlib.suppress(TypeError, ValueError):  # a default that is no JSON is not shown
            json.dumps(parameter.default, allow_nan=False)
            schema["default"] = parameter.default
    return schema


def _type_schema(hint: Any, about: str) -> dict[str, Any]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    if origin is list:
        return {"type": "array", "items": _type_schema(inner[0], about)}
    if origin is dict and inner[0] is str:
        return {"type": "object", "additionalProperties": _type_schema(inner[1], about)}
    if origin is Literal and all(type(choice) in (str, int, bool) for choice in inner):
        kinds = [*dict.fromkeys(_SIMPLE[type(choice)] for choice in inner)]
        return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": [*inner]}
    if origin in (typing.Union, types.UnionType) and len(inner) == 2 and type(None) in inner:
        return _type_schema(next(kind for kind in inner if kind is not type(None)), about) | {"nullable": True}
    shown = hint.__name__ if isinstance(hint, type) and origin is None else str(hint)
    raise ConfigError(f"{about} is of type {shown}, which has no JSON schema; use {_SUPPORTED}")


def _about(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"
