"""Arguments written as bare text (`<parameter=topk>3</parameter>`), and the types that a tool's schema gives them.

What does not fit the type that the schema asks for stays text, which the check of arguments then reports.
"""

import ast
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from burnish.agents.parsers.base import Schema
from burnish.agents.parsers.jsontext import read_json, write_json

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_OTHER_SPELLINGS = {"int": "integer", "float": "number", "bool": "boolean", "str": "string"}
_LITERAL_LIMIT = 10_000  # characters of a Python literal that are read: its parser has no limits


def properties_of(tools: Sequence[Schema], name: str) -> Mapping[str, Any]:
    """The parameters that the schema of a tool describes; none where there is no such tool."""
    properties = parameters_of(tools, name).get("properties")
    return properties if isinstance(properties, Mapping) else {}


def parameters_of(tools: Sequence[Schema], name: str) -> Mapping[str, Any]:
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            parameters = function.get("parameters")
            return parameters if isinstance(parameters, Mapping) else {}
    return {}


def by_schema(text: str, schema: Any) -> Any:
    """`text` as the first type of `schema` that it can be, a string where it can be none."""
    kinds = types_of(schema)
    if text == "null" and kinds - {"string"}:
        return None
    for kind in sorted(kinds - {"string", "null"}):
        value = _converted(text, kind)
        if value is not text:
            return value
    return text


def typed_or_guessed(text: str, schema: Any) -> Any:
    """By the schema where it says a type; JSON otherwise, where it is JSON."""
    return by_schema(text, schema) if types_of(schema) else guessed(text)


def guessed(text: str) -> Any:
    """`text` as JSON where it is JSON, else itself."""
    try:
        value = read_json(text)
    except ValueError:
        return text
    return text if text in ("NaN", "Infinity", "-Infinity") else value


def types_of(schema: Any) -> set[str]:
    """The names of the types that a schema allows; empty where it says nothing."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    names = {named} if isinstance(named, str) else {name for name in _items(named) if isinstance(name, str)}
    kinds = {_OTHER_SPELLINGS.get(name, name) for name in names}
    for key in ("anyOf", "oneOf", "allOf"):
        for branch in _items(schema.get(key)):
            kinds |= types_of(branch)
    if not kinds and "$ref" in schema:
        return {"any"}
    return kinds


def _converted(text: str, kind: str) -> Any:
    """`text` as a value of the type `kind`; `text` itself, the same object, where it is none."""
    if kind == "boolean":
        return {"true": True, "false": False}.get(text.strip().lower(), text)
    if kind in ("integer", "number"):
        return _number(text, kind)
    value = guessed(text)
    if kind == "any":
        return value
    value = _literal(text) if value is text else value
    return value if isinstance(value, dict | list) else text


def _number(text: str, kind: str) -> Any:
    bare = text.strip()
    try:
        if _INTEGER.fullmatch(bare):
            return int(bare)
        if kind == "number" and _NUMBER.fullmatch(bare):
            value = float(bare)
            if math.isfinite(value):
                return int(value) if value.is_integer() and abs(value) < 2**53 else value
    except ValueError:  # the interpreter bounds the digits of an integer
        pass
    return text


def _literal(text: str) -> Any:
    """A list or an object as Python writes it: single quotes, True, None."""
    if len(text) > _LITERAL_LIMIT or not text.lstrip().startswith(("{", "[", "(")):
        return text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = ast.literal_eval(text.strip())
        return read_json(write_json(value))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else ()
