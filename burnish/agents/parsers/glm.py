"""`glm`: a name and pairs of keys and values, as GLM writes them. What follows the first call is dropped.

    <tool_call>search
    <arg_key>query</arg_key>
    <arg_value>cats</arg_value>
    </tool_call>

A value has the type of the schema; where that says nothing, it is JSON if it can be. Blanks around values are not kept.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.agents.parsers import Parsed, Schema, ToolCall, ToolParser
from burnish.agents.parsers.reading import after_thought, blocks, properties_of, typed_or_guessed, write_json, written

OPENING, CLOSING = "<tool_call>", "</tool_call>"
KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


class GlmParser(ToolParser):
    def parse(self, text: str, tools: Sequence[Schema] = ()) -> Parsed:
        text = after_thought(text)
        before, found, rest = blocks(text, OPENING, CLOSING)
        parsed = Parsed(before if found else text)
        for block in found:
            name, _, pairs = block.partition(KEY)
            name = name.strip()
            if not name:
                parsed.add(f"there is no name after {OPENING}", f"{OPENING}{block}{CLOSING}")
                continue
            arguments = _arguments(KEY + pairs if pairs else "", properties_of(tools, name), parsed)
            parsed.calls.append(ToolCall(name, write_json(arguments)))
        parsed.unclosed(rest, CLOSING)
        return parsed

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        pairs = "".join(
            f"{KEY}{key}{KEY_END}\n{VALUE}{written(value)}{VALUE_END}\n" for key, value in arguments.items()
        )
        return f"{OPENING}{name}\n{pairs}{CLOSING}"


def _arguments(text: str, properties: Mapping[str, Any], parsed: Parsed) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    at = 0
    while (start := text.find(KEY, at)) >= 0:
        key_end = text.find(KEY_END, start)
        value = key_end + len(KEY_END)
        tag = text.find("<", value)
        value = tag if tag >= 0 and not text[value:tag].strip() else value  # blanks between a key and its value
        end = text.find(VALUE_END, value)
        if key_end < 0 or end < 0 or not text.startswith(VALUE, value):
            form = f"{KEY}name{KEY_END} and then {VALUE}value{VALUE_END}"
            parsed.add(f"an argument is not written as {form}", text[start:])
            break
        key = text[start + len(KEY) : key_end].strip()
        arguments[key] = typed_or_guessed(text[value + len(VALUE) : end].strip(), properties.get(key))
        at = end + len(VALUE_END)
    return arguments
