"""`hermes`: `<tool_call>{"name": "search", "arguments": {"query": "cats"}}</tool_call>`, as Hermes and Qwen write it.

How it differs from the recorded results: a `<tool_call>` that the model only mentions in its thought, before
`</think>`, is text, and the call after the thought is read; there, the mention swallows the call.

A tag inside a string of the arguments does not end the call.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.agents.parsers import Parsed, Schema, ToolCall, ToolParser
from burnish.agents.parsers.reading import check_name, read_json, write_json

OPENING, CLOSING, END_OF_THOUGHT = "<tool_call>", "</tool_call>", "</think>"
# What may stand in a block: strings of JSON, skipped whole; and what ends the search for the end of the block.
_TOKENS = re.compile(rf'"(?:[^"\\]+|\\.)*(?:"|\\?\Z)|\\|{OPENING}|{CLOSING}', re.DOTALL)


class HermesParser(ToolParser):
    def parse(self, text: str, tools: Sequence[Schema] = ()) -> Parsed:
        parsed = Parsed()
        at = done = 0  # `done`: up to where the text is accounted for
        while (start := text.find(OPENING, at)) >= 0:
            inner = start + len(OPENING)
            end = text.find(CLOSING, inner)
            if end < 0:
                parsed.unclosed(text[start:], CLOSING)
                break
            call, end = _call(text, inner, end)
            thought_end = text.rfind(END_OF_THOUGHT, inner, end)
            if isinstance(call, str) and 0 <= thought_end < text.find(OPENING, thought_end):
                at = thought_end
                continue
            parsed.content += text[done:start]
            at = done = end + len(CLOSING)
            parsed.add(call, text[start:done])
        if not parsed.calls and not parsed.malformed and CLOSING in text:
            parsed.add(f"there is a {CLOSING} without a {OPENING} before the call", text)
        parsed.content += text[done:]
        return parsed

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{OPENING}\n{write_json({'name': name, 'arguments': arguments})}\n{CLOSING}"


def _call(text: str, inner: int, end: int) -> tuple[ToolCall | str, int]:
    """The call between `inner` and `end`, or further on where that `end` is inside a string; else what is wrong."""
    call = _read(text[inner:end])
    if isinstance(call, str):
        # An opening tag or a backslash is no JSON; and looking on from every tag would take the square of the length.
        ends = (token for token in _TOKENS.finditer(text, inner) if token[0] in (CLOSING, OPENING, "\\"))
        token = next(ends, None)
        if token is not None and token[0] == CLOSING and token.start() > end:
            longer = _read(text[inner : token.start()])
            if isinstance(longer, ToolCall):
                return longer, token.start()
    return call, end


def _read(inside: str) -> ToolCall | str:
    if OPENING in inside and inside.lstrip().startswith(OPENING):
        return f"there is a {OPENING} inside a {OPENING}; write one tag around each call"
    try:
        value = read_json(inside)
        if not isinstance(value, dict):
            return f'the call is no JSON object; write {OPENING}{{"name": …, "arguments": {{…}}}}{CLOSING}'
        name = check_name(value.get("name"))
        if "arguments" not in value:
            return f'the call of {name[:80]} has no "arguments"; write "arguments": {{}} if there are none'
        return ToolCall(name, write_json(value["arguments"]))
    except ValueError as error:
        return f"the call cannot be read: {error}"
