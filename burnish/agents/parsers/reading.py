"""What formats share in reading a turn: JSON as models write it, tags, and arguments that are bare text.

Bare text (`<parameter=topk>3</parameter>`) gets the type of the tool's schema; what does not fit that type stays text,
which the check of arguments then reports.
"""

import ast
import json
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.agents.parsers import Schema
from burnish.openai_wire.fields import is_deep

MAX_DEPTH = 64
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
# A string, closed or cut off at the end of the text; a bracket.
_STRUCTURE = re.compile(r'"(?:[^"\\]+|\\.)*(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_OTHER_SPELLINGS = {"int": "integer", "float": "number", "bool": "boolean", "str": "string"}
_LITERAL_LIMIT = 10_000  # characters of a Python literal that are read: its parser has no limits


def read_json(text: str) -> Any:
    """The value of `text`. ValueError says what is wrong, in words that follow "it is"."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"not JSON: {error.msg[:1].lower()}{error.msg[1:]} at {where}") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError:  # the interpreter bounds the digits of an integer
        raise ValueError("not usable: it holds a number with too many digits") from None
    if text.count("{") + text.count("[") > MAX_DEPTH and is_deep(value, MAX_DEPTH):
        raise ValueError(_TOO_DEEP)
    return value


def write_json(value: Any) -> str:
    """JSON text. Half of a surrogate pair, which JSON can spell but no encoding can carry, stays an escape."""
    text = json.dumps(value, ensure_ascii=False)
    return text if is_text(text) else json.dumps(value)


def is_text(text: str) -> bool:
    """Whether `text` can be encoded, that is, holds no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_name(name: Any) -> str:
    """The name of a call. ValueError says what is wrong with it."""
    if not isinstance(name, str) or not name.strip() or not is_text(name):
        raise ValueError('it names no tool: "name" must be the name of one, as a string')
    return name


def json_end(text: str, start: int) -> int:
    """Where the object or list that begins at `start` ends, valid or not; -1 where it never does."""
    depth = 0
    for token in _STRUCTURE.finditer(text, start):
        if token[0] in ("{", "["):
            depth += 1
        elif token[0] in ("}", "]"):
            depth -= 1
            if depth == 0:
                return token.end()
    return -1


@dataclass(frozen=True)
class Element:
    """`<parameter=query>cats</parameter>`: head `query`, body `cats`."""

    head: str
    body: str
    text: str


def blocks(text: str, opening: str, closing: str) -> tuple[str, list[str], str]:
    """The text before the first `opening`, the insides of the closed blocks, and an unclosed block at the end."""
    start = text.find(opening)
    if start < 0:
        return text, [], ""
    before = text[:start]
    found: list[str] = []
    while start >= 0:
        end = text.find(closing, start + len(opening))
        if end < 0:
            return before, found, text[start:]
        found.append(text[start + len(opening) : end])
        start = text.find(opening, end + len(closing))
    return before, found, ""


def elements(text: str, opening: str, closing: str) -> tuple[list[Element], str]:
    """The elements in `text`, in order, and all text outside of them (without blanks at both ends)."""
    found: list[Element] = []
    outside: list[str] = []
    at = 0
    while (start := text.find(opening, at)) >= 0:
        head_end = text.find(">", start + len(opening))
        if head_end < 0:
            break
        head = text[start + len(opening) : head_end]
        if "<" in head:  # the opening tag was cut short, and this is the end of another
            outside.append(text[at : head_end + 1])
            at = head_end + 1
            continue
        end = text.find(closing, head_end + 1)
        if end < 0:
            break
        outside.append(text[at:start])
        at = end + len(closing)
        found.append(Element(head, text[head_end + 1 : end], text[start:at]))
    outside.append(text[at:])
    return found, "".join(outside).strip()


def after_thought(text: str) -> str:
    """The turn without its thought, whose opening tag may be in the prompt."""
    thought, tag, rest = text.partition("</think>")
    return rest if tag else thought


def written(value: Any) -> str:
    return value if isinstance(value, str) else write_json(value)


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
