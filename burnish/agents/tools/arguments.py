"""The arguments of a call, read from the model's JSON text and checked against the tool's schema before the tool runs.

`read_arguments` returns the arguments or raises `BadArguments`, whose text tells the model what to write instead.
Nothing is converted: "3" is not 3. Of JSON schema it knows type (and nullable), enum,
properties, required, items, minimum, maximum and additionalProperties; other keywords are not looked at. Names that
the schema does not have are refused at the top, where JSON schema itself would let them pass.
"""

import json
import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from burnish.user_code import nearest

MOST_PROBLEMS = 5  # shown at a time


class BadArguments(Exception):
    """The text is for the model."""


def read_arguments(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the tool may have them. `schema` is the whole tool schema."""
    name, parameters = schema["function"]["name"], schema["function"]["parameters"]
    what = f"the arguments of {name}"
    try:
        given = json.loads(text, parse_constant=_refuse)
        json.dumps(given, ensure_ascii=False, allow_nan=False).encode()  # 1e999, and halves of characters
    except (ValueError, RecursionError) as error:
        raise BadArguments(f"{what} are not valid JSON ({_reason(error)}). {_wanted(parameters)}") from None
    if not isinstance(given, dict):
        raise BadArguments(f"{what} must be one JSON object, not {_shown(given)}. {_wanted(parameters)}")
    if "properties" in parameters and "additionalProperties" not in parameters:
        parameters = {**parameters, "additionalProperties": False}
    found = [*islice(problems(given, parameters, ""), MOST_PROBLEMS)]
    if found:
        raise BadArguments(f"bad arguments for {name}: {'; '.join(found)}. {_wanted(parameters)}")
    return given


def problems(value: Any, schema: Any, path: str) -> Iterator[str]:
    """What is wrong with a value, for the model that wrote it. `path` names the value, "" the arguments as one."""
    if not isinstance(schema, Mapping):
        return  # true, false, or a server's mistake
    about = f"argument {path}" if path else "the arguments"
    if value is None and schema.get("nullable") is True:
        return
    types = schema.get("type")
    types = [types] if isinstance(types, str) else types
    if isinstance(types, list) and not any(_is(value, name) for name in types):
        yield f"{about} must be {' or '.join(map(_called, types))}, not {_shown(value)}{_unquoted(value, types)}"
        return
    if isinstance(choices := schema.get("enum"), list) and not any(
        isinstance(value, bool) == isinstance(choice, bool) and value == choice for choice in choices
    ):
        yield f"{about} must be one of {', '.join(_json(choice) for choice in choices)}, not {_shown(value)}"
    if _is(value, "number"):
        low, high = schema.get("minimum"), schema.get("maximum")
        if low is not None and _is(low, "number") and value < low:
            yield f"{about} must be at least {low}, not {_shown(value)}"
        if high is not None and _is(high, "number") and value > high:
            yield f"{about} must be at most {high}, not {_shown(value)}"
    if isinstance(value, dict):
        yield from _in_object(value, schema, path)
    if isinstance(value, list) and "items" in schema:
        for position, item in enumerate(value):
            yield from problems(item, schema["items"], f"{path}[{position}]")


def _in_object(value: dict[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    inside = f"{path}." if path else ""
    for name in schema.get("required") or ():
        if name not in value:
            yield f"argument {inside}{name} is missing"
    others = schema.get("additionalProperties")
    for name, item in value.items():
        if name in properties:
            yield from problems(item, properties[name], f"{inside}{name}")
        elif others is False:
            yield f"there is no argument {inside}{name:.100}{nearest(name[:100], properties)}"
        else:
            yield from problems(item, others, f"{inside}{name:.100}")


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return str(error)
    if isinstance(error, UnicodeEncodeError):
        return "a \\u escape that is half a character"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number that is too large, or not one"


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _wanted(parameters: Mapping[str, Any]) -> str:
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return "Write the arguments as one JSON object" + (": {}" if isinstance(properties, Mapping) else "")
    required = parameters.get("required") or ()
    return "Its arguments: " + ", ".join(
        f"{name} ({_kind(schema)}{', required' if name in required else ''})" for name, schema in properties.items()
    )


def _kind(schema: Any) -> str:
    types = schema.get("type", "any") if isinstance(schema, Mapping) else "any"
    return types if isinstance(types, str) else " or ".join(map(str, types))


def _is(value: Any, name: Any) -> bool:
    if isinstance(value, bool):
        return bool(name == "boolean")
    if isinstance(value, int):
        return name in ("integer", "number")
    if isinstance(value, float):
        return name == "number" and math.isfinite(value)
    kinds = {str: "string", list: "array", dict: "object", type(None): "null"}
    return kinds.get(type(value)) == name


def _called(name: Any) -> str:
    return {"null": "null", "integer": "an integer", "array": "an array", "object": "an object"}.get(name, f"a {name}")


def _unquoted(value: Any, types: list[Any]) -> str:
    """How to write a number that was given as text, or a whole one that was given with a fraction."""
    if isinstance(value, float) and value.is_integer() and "integer" in types:
        return f"; write {int(value)}" if abs(value) < 1e15 else ""
    if not isinstance(value, str) or len(value) > 100:
        return ""
    try:
        meant = json.loads(value, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return ""
    return f"; write {value.strip()} without quotes" if any(_is(meant, name) for name in types) else ""


def _shown(value: Any) -> str:
    text = _json(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
