"""`minimax`: invocations in one `<minimax:tool_call>`. What follows the first call is dropped.

    <minimax:tool_call>
    <invoke name="search">
    <parameter name="query">cats</parameter>
    </invoke>
    </minimax:tool_call>

A value has the type of the schema; where that says nothing, it is JSON if it can be. Blanks around values are not kept.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.agents.parsers import Parsed, Schema, ToolCall, ToolParser
from burnish.agents.parsers.reading import blocks, elements, properties_of, typed_or_guessed, write_json, written

OPENING, CLOSING = "<minimax:tool_call>", "</minimax:tool_call>"


class MinimaxParser(ToolParser):
    def parse(self, text: str, tools: Sequence[Schema] = ()) -> Parsed:
        before, found, rest = blocks(text, OPENING, CLOSING)
        parsed = Parsed(before if found else text)
        for block in found:
            invocations, outside = elements(block, "<invoke name=", "</invoke>")
            for one in invocations:
                name, lost = one.head.strip("\"' "), ""
                if not name:
                    parsed.add("<invoke name=…> names no tool", one.text)
                    continue
                values, lost = elements(one.body, "<parameter name=", "</parameter>")
                keys, properties = [value.head.strip("\"' ") for value in values], properties_of(tools, name)
                arguments = {
                    key: typed_or_guessed(value.body.strip(), properties.get(key))
                    for key, value in zip(keys, values, strict=True)
                }
                parsed.calls.append(ToolCall(name, write_json(arguments)))
                outside += lost
            if outside or not invocations:
                reason = 'a call is written as <invoke name="…"><parameter name="…">value</parameter></invoke>'
                parsed.add(reason, outside or f"{OPENING}{block}{CLOSING}")
        parsed.unclosed(rest, CLOSING)
        return parsed

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        values = "".join(f'<parameter name="{key}">{written(value)}</parameter>\n' for key, value in arguments.items())
        return f'{OPENING}\n<invoke name="{name}">\n{values}</invoke>\n{CLOSING}'
