"""`kimi`: calls by id in one section of special tokens. The id, `functions.search:0`, holds the name.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{…}<|tool_call_end|>
    <|tool_calls_section_end|>

A name that is not quite that of a tool is corrected if only one tool can be meant: by the id that holds its name, or by
the arguments that only it takes. What follows the section is dropped.

How it differs from the recorded results: arguments that are no JSON object make a malformed call (there: `{}`).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.agents.parsers import Malformed, Parsed, Schema, ToolCall, ToolParser
from burnish.agents.parsers.reading import blocks, parameters_of, properties_of, read_json, write_json

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
BEGIN, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_ID = re.compile(r"functions\.(.+):[0-9]+")


class KimiParser(ToolParser):
    def parse(self, text: str, tools: Sequence[Schema] = ()) -> Parsed:
        content, opening, section = text.partition(SECTION)
        if not opening:
            at = text.find(BEGIN)
            return Parsed(text, [], [Malformed(text[at:], f"the call is not inside {SECTION}")] if at >= 0 else [])
        parsed = Parsed(content)
        outside, found, rest = blocks(section.partition(SECTION_END)[0], BEGIN, END)
        for block in found:
            call_id, given, arguments = block.partition(ARGUMENTS)
            call = _call(call_id.strip(), arguments, tools) if given else f"there is no {ARGUMENTS} after the id"
            parsed.add(call, f"{BEGIN}{block}{END}")
        if rest:
            parsed.unclosed(rest, END)
        elif outside.strip() or not found:
            parsed.add(f"there is no {BEGIN} after {SECTION}", outside or opening)
        return parsed

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{SECTION}{BEGIN}functions.{name}:0{ARGUMENTS}{write_json(arguments)}{END}{SECTION_END}"


def _call(call_id: str, text: str, tools: Sequence[Schema]) -> ToolCall | str:
    if not call_id:
        return f"there is no id, such as functions.NAME:0, after {BEGIN}"
    try:
        arguments = read_json(text)
    except ValueError as error:
        return f"the arguments of {call_id[:80]} are {error}"
    if not isinstance(arguments, dict):
        return f"the arguments of {call_id[:80]} are no JSON object"
    return ToolCall(_name(call_id, arguments, tools), write_json(arguments), call_id)


def _name(call_id: str, arguments: Mapping[str, Any], tools: Sequence[Schema]) -> str:
    names = [str(tool.get("function", tool).get("name")) for tool in tools]
    exact = _ID.fullmatch(call_id)
    for candidate in (call_id, exact[1] if exact else call_id):
        if candidate in names:
            return candidate
    held = [name for name in names if name.lower() in call_id.lower()]
    if not held and arguments:
        required = {name: set(parameters_of(tools, name).get("required") or ()) for name in names}
        held = [name for name in names if required[name] <= set(arguments) <= set(properties_of(tools, name))]
    return held[0] if len(held) == 1 else call_id
