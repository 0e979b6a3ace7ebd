"""`@function_tool`: a typed Python function is a tool, and its schema comes from its signature and docstring.

It returns text or what has a JSON form, also with a reward and metrics: `(text, reward)`, `(text, reward, metrics)`.
An `async def` runs on the event loop, a plain `def` in its own thread; one that still runs when its time is up cannot
be ended and is left behind. Exceptions end the trajectory, except ToolError and those in `observes`, whose text the
model is shown. A function that cannot be a tool is a ConfigError that names the parameter.
"""

import contextlib
import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal

from burnish.agents.guarded import in_thread
from burnish.agents.tools.base import Answer, BaseTool, ToolError, ToolResponse
from burnish.agents.tools.schema import function_schema
from burnish.errors import ConfigError

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
_SUPPORTED = "str, int, float, bool, list[…], dict[str, …], Literal[…], or one of these | None"
_ENTRY = re.compile(
    r"\s*(?P<rest>:param\s+(?:[^:]*\s)?|[-*]\s+)?`{0,2}(?P<name>\w+)`{0,2}\s*(?:\([^()]*\)\s*)?:(?P<text>.*)"
)
_HEADER = re.compile(
    r"\s*(args|arguments|parameters|params|returns?|raises|yields|examples?|notes?)\s*:?\s*", re.IGNORECASE
)
_UNDERLINE = re.compile(r"\s*-{3,}\s*")


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

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Answer:
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
        reward, metrics = 0.0, {}
        if isinstance(result, tuple) and len(result) in (2, 3) and isinstance(result[0], str | dict | ToolResponse):
            result, reward, metrics = (*result, {})[:3]
        if isinstance(result, ToolResponse):
            return result, reward, metrics
        try:
            text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            kind = type(result).__name__
            raise TypeError(f"{self.name} returned a {kind} that is neither text nor JSON: {error}") from error
        return ToolResponse(text), reward, metrics


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
    about = f"@function_tool {_about(function)}"
    signature = inspect.signature(function).parameters
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise ConfigError(f"{about}: its annotations cannot be read ({error}); import the names they use") from error
    summary, texts = read_docstring(function.__doc__, signature.keys())
    properties: dict[str, Any] = {}
    for key, parameter in signature.items():
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise ConfigError(f"{about}: {parameter} has no names that a model could give; write out the parameters")
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ConfigError(f"{about}: {key} can only be given by position, and a model gives names; remove the /")
        if key not in hints:
            raise ConfigError(f"{about}: {key} has no type; annotate it, as in {key}: str (one of {_SUPPORTED})")
        properties[key] = _type_schema(hints[key], f"{about}: {key}")
        if texts.get(key):
            properties[key]["description"] = texts[key]
        if parameter.default not in (inspect.Parameter.empty, None):
            with contextlib.suppress(TypeError, ValueError):  # a default that is no JSON is not shown
                json.dumps(parameter.default, allow_nan=False)
                properties[key]["default"] = parameter.default
    required = [key for key, parameter in signature.items() if parameter.default is inspect.Parameter.empty]
    described = summary if description is None else description
    return function_schema(name or function.__name__, described, properties, required)


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


def read_docstring(text: str | None, parameters: Collection[str]) -> tuple[str, dict[str, str]]:
    """The description, which is the first paragraph, and by name the descriptions of those `parameters` that have one.

    These are found in the usual ways of writing them, and continue on the lines below that are indented further:

        Args:                          Parameters                     :param city: where
            city (str): where          ----------                     :param str city: where
                                       city : str
        city: where                        where
    """
    lines, paragraph = inspect.cleandoc(text or "").splitlines(), []
    for number, line in enumerate(lines):
        if not line.strip() or _HEADER.fullmatch(line) or (number and _entry(line, parameters)):
            break
        paragraph.append(line.strip())
    return " ".join(paragraph), dict(_entries(lines, parameters))


def _entries(lines: list[str], parameters: Collection[str]) -> Iterator[tuple[str, str]]:
    numpy = False  # what follows a colon there is a type
    for number, line in enumerate(lines):
        if _UNDERLINE.fullmatch(line):
            numpy = True
        entry = _entry(line, parameters)
        if entry is None or not number:
            continue
        indent, more = _indent(line), []
        for further in lines[number + 1 :]:
            if not further.strip() or _indent(further) <= indent:
                break
            more.append(further.strip())
        words = more if numpy and not entry["rest"] else [entry["text"].strip(), *more]
        yield entry["name"], " ".join(words).strip()


def _entry(line: str, parameters: Collection[str]) -> re.Match[str] | None:
    found = _ENTRY.fullmatch(line)
    return found if found is not None and found["name"] in parameters else None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
