"""Tool schemas, checked when they are read, and the arguments of calls, checked against them before a tool runs.

A schema is `{"type": "function", "function": {"name", "description", "parameters"}}`, where `parameters` is a JSON
schema of an object. Of arguments nothing is converted: "3" is not 3. Of JSON schema it knows type (and nullable), enum,
properties, required, items, minimum, maximum and additionalProperties; other keywords are not looked at. Names that the
schema does not have are refused at the top, where JSON schema itself would let them pass.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from burnish.errors import ConfigError
from burnish.user_code import listed, nearest

Schema = Mapping[str, Any]

TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
_MEANT = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}
_NAME = re.compile(r"[\w./:-]+")
MOST_PROBLEMS = 5  # of arguments, shown at a time


def function_schema(name: str, description: str, properties: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": dict(properties), "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def parameters_of(schema: Schema) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schema["function"]["parameters"]
    return found


def check_schema(schema: Any, where: str) -> dict[str, Any]:
    """The schema with all its parts there; ConfigError where it is malformed."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("function"), Mapping):
        raise ConfigError(
            f"{where}: a tool_schema is {{type: function, function: {{name, description, parameters}}}}, "
            f"got {schema!r:.200}"
        )
    if schema.get("type", "function") != "function":
        raise ConfigError(f"{where}: tool_schema.type={schema['type']!r}: it must be function")
    function = schema["function"]
    name, description = function.get("name"), function.get("description", "")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: tool_schema.function.name={name!r:.100}: a tool needs a name of letters, digits, _ - . : and /"
        )
    if not isinstance(description, str):
        raise ConfigError(f"{where} ({name}): tool_schema.function.description={description!r:.100} is not text")
    parameters = function.get("parameters", {"type": "object", "properties": {}})
    for problem in _malformed_object(parameters, "parameters", top=True):
        raise ConfigError(f"{where} ({name}): tool_schema.function.{problem}")
    function = {**function, "description": description, "parameters": parameters}
    return {**schema, "type": "function", "function": function}


def check_agreement(schema: Schema, own: Schema, what: str, where: str) -> None:
    """ConfigError where `schema`, which a user wrote, asks for other arguments than `own`, the schema of `what`."""
    shown, taken = parameters_of(schema).get("properties", {}), parameters_of(own).get("properties", {})
    for name in shown:
        if name not in taken:
            raise ConfigError(
                f"{where}: the schema has the parameter {name}, which {what} does not take; it takes "
                f"{listed(taken)}{nearest(str(name), taken)}"
            )
    for name in parameters_of(own).get("required", ()):
        if name not in shown or name not in parameters_of(schema).get("required", ()):
            lacks, to = ("have", "properties and required") if name not in shown else ("require", "required")
            raise ConfigError(f"{where}: {what} needs {name}, which the schema does not {lacks}; add it to its {to}")
    for name in shown:
        wider = _types(shown[name]) - _types(taken[name])
        if "number" in _types(taken[name]):
            wider -= {"integer"}
        if wider:
            raise ConfigError(
                f"{where}: the schema says that {name} is of type {listed(_types(shown[name]))}, and {what} takes "
                f"{listed(_types(taken[name]))}"
            )


def _types(schema: Schema) -> set[str]:
    given = schema.get("type", TYPES)
    return {given} if isinstance(given, str) else {*given}


def _malformed_object(schema: Any, path: str, top: bool = False) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        yield f"{path} is not an object with type, properties and required, but {schema!r:.100}"
        return
    if top and schema.get("type") != "object":
        yield f"{path}.type={schema.get('type')!r}: it must be object; the arguments go below properties"
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not all(isinstance(name, str) for name in properties):
        yield f"{path}.properties={properties!r:.100}: it must map the names of arguments to their schemas"
        return
    for name, inner in properties.items():
        yield from _malformed(inner, f"{path}.properties.{name}")
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        yield f"{path}.required={required!r:.100}: it must be a list of names"
        return
    for name in required:
        if name not in properties and (top or "properties" in schema):
            yield f"{path}.required names {name}, which is not in properties{nearest(name, properties)}"


def _malformed(schema: Any, path: str) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        yield f"{path}={schema!r:.100}: it must be a schema such as {{type: string, description: …}}"
        return
    given = schema.get("type")
    for name in given if isinstance(given, list) else [given]:
        if name is not None and name not in TYPES:
            meant = _MEANT.get(name, "") if isinstance(name, str) else ""
            hint = f"; did you mean {meant}?" if meant else nearest(str(name), TYPES)
            yield f"{path}.type={name!r:.50}: a type is one of {', '.join(TYPES)}{hint}"
            return
    if "enum" in schema:
        choices, limits = schema["enum"], {key: schema[key] for key in ("type", "nullable") if key in schema}
        if not isinstance(choices, list) or not choices:
            yield f"{path}.enum={choices!r:.100}: it must be a list of the values that are allowed"
            return
        for choice in choices:
            if [*problems(choice, limits, "")]:
                hint = "YAML needs quotes around text like yes"
                yield f"{path}.enum has {choice!r:.50}, not of type {schema['type']}; {hint}"
                return
    if "properties" in schema or "required" in schema:
        yield from _malformed_object(schema, path)
    if "items" in schema:
        yield from _malformed(schema["items"], f"{path}.items")


class BadArguments(Exception):
    """The text is for the model."""


def read_arguments(text: str, schema: Schema) -> dict[str, Any]:
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
    required, shown = parameters.get("required") or (), []
    for name, schema in properties.items():
        types = schema.get("type", "any") if isinstance(schema, Mapping) else "any"
        kind = types if isinstance(types, str) else " or ".join(map(str, types))
        shown.append(f"{name} ({kind}{', required' if name in required else ''})")
    return "Its arguments: " + ", ".join(shown)


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
