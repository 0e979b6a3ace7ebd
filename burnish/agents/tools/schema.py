"""Tool schemas: what the model is shown of a tool, checked when it is read and before anything is trained.

A schema is `{"type": "function", "function": {"name", "description", "parameters"}}`, where `parameters` is a JSON
schema of an object. `check_schema` says what is malformed; `check_agreement` says where a schema that a user wrote does
not match the function or built-in tool it describes. Both raise ConfigError and name `where` the schema stands.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from burnish.agents.tools.arguments import problems
from burnish.errors import ConfigError
from burnish.user_code import listed, nearest

Schema = Mapping[str, Any]

TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
_MEANT = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}
_NAME = re.compile(r"[\w./:-]+")


def function_schema(name: str, description: str, properties: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    """The usual form of a schema."""
    parameters = {"type": "object", "properties": dict(properties), "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def parameters_of(schema: Schema) -> Mapping[str, Any]:
    """The JSON schema of a tool's arguments."""
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
    return {
        **schema,
        "type": "function",
        "function": {**function, "description": description, "parameters": parameters},
    }


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
        if ("properties" in schema and name not in properties) or (top and name not in properties):
            yield f"{path}.required names {name}, which is not in properties{nearest(name, properties)}"


def _malformed(schema: Any, path: str) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        yield f"{path}={schema!r:.100}: it must be a schema such as {{type: string, description: …}}"
        return
    given = schema.get("type")
    for name in [given] if given is None or isinstance(given, str) else given if isinstance(given, list) else [given]:
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
