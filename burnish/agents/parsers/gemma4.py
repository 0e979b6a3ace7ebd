"""`gemma4`: `<|tool_call>call:search{query:<|"|>cats<|"|>,topk:3}<tool_call|>`, neither JSON nor tags.

Strings stand between `<|"|>` and cannot hold it, keys are bare and without blanks, the rest is as in JSON. A bare word
is a string.

How it differs from the recorded results: lists and objects are read as such, and strings may have several lines (there:
lists and objects are cut at the first comma, and such strings keep their marks).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.agents.parsers import Parsed, Schema, ToolCall, ToolParser
from burnish.agents.parsers.reading import MAX_DEPTH, guessed, write_json

PADDING = ("<|pad|>", "<pad>")
OPENING, CLOSING, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_HEAD = re.compile(r"\s*call:([^{}\s<]{1,200})\s*(?=\{)")
_KEY = re.compile(r"([^\s:{}\[\],<>]{1,200})\s*:\s*")
_BARE = re.compile(r"[^,{}\[\]<]*")
_BLANKS = re.compile(r"\s*")


class Gemma4Parser(ToolParser):
    def parse(self, text: str, tools: Sequence[Schema] = ()) -> Parsed:
        for padding in PADDING:
            text = text.replace(padding, "")
        parsed = Parsed()
        done = 0
        while (start := text.find(OPENING, done)) >= 0:
            if text.find(CLOSING, start) < 0:
                parsed.unclosed(text[start:], CLOSING)
                break
            parsed.content += text[done:start]
            try:
                call, done = _call(text, start + len(OPENING))
                parsed.calls.append(call)
            except ValueError as error:
                done = text.find(CLOSING, start) + len(CLOSING)
                parsed.add(f"the call cannot be read: {error}", text[start:done])
        parsed.content += text[done:]
        return parsed

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{OPENING}call:{name}{_written(arguments)}{CLOSING}"


def _call(text: str, at: int) -> tuple[ToolCall, int]:
    head = _HEAD.match(text, at)
    if head is None:
        raise ValueError(f"{OPENING} must be followed by call:NAME{{…}}")
    arguments, at = _value(text, head.end(), 0)
    if not text.startswith(CLOSING, at):
        raise ValueError(f"the arguments of {head[1][:80]} are not followed by {CLOSING}")
    return ToolCall(head[1], write_json(arguments)), at + len(CLOSING)


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """The value that begins at `at`, and where it ends."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    if text.startswith(QUOTE, at):
        end = text.find(QUOTE, at + len(QUOTE))
        if end < 0:
            raise ValueError(f"a string has no closing {QUOTE}")
        return text[at + len(QUOTE) : end], end + len(QUOTE)
    if text.startswith("{", at):
        return _items(text, at + 1, "}", depth)
    if text.startswith("[", at):
        return _items(text, at + 1, "]", depth)
    bare = _BARE.match(text, at)
    assert bare is not None  # it may be empty
    return guessed(bare[0].strip()), bare.end()


def _items(text: str, at: int, closing: str, depth: int) -> tuple[Any, int]:
    """The items of a list, or the pairs of an object, up to and with its end."""
    pairs: dict[str, Any] = {}
    items: list[Any] = []
    at = _skip(text, at)
    while not text.startswith(closing, at):
        if closing == "}":
            key = _KEY.match(text, at)
            if key is None:
                raise ValueError("an argument is not written as name:value")
            pairs[key[1]], at = _value(text, key.end(), depth + 1)
        else:
            value, at = _value(text, at, depth + 1)
            items.append(value)
        at = _skip(text, at)
        if text.startswith(",", at):
            at = _skip(text, at + 1)
        elif not text.startswith(closing, at):
            raise ValueError(f"there is no , or {closing} after a value")
    return (pairs if closing == "}" else items), at + 1


def _skip(text: str, at: int) -> int:
    blanks = _BLANKS.match(text, at)
    return blanks.end() if blanks else at


def _written(value: Any) -> str:
    if isinstance(value, str):
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return write_json(value)
