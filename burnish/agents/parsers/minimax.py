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

from burnish.agents.parsers.base import Malformed, Parsed, Schema, ToolCall, ToolParser
from burnish.agents.parsers.jsontext import write_json
from burnish.agents.parsers.markup import blocks, elements, unclosed
from burnish.agents.parsers.values import properties_of, typed_or_guessed

OPENING, CLOSING = "<minimax:tool_call>", "</minimax:tool_call>"


class MinimaxParser(ToolParser):
    def parse(self, text: str, tools: Sequence[Schema] = ()) -> Parsed:
        before, found, rest = blocks(text, OPENING, CLOSING)
        calls: list[ToolCall] = []
        malformed: list[Malformed] = []
        for block in found:
            invocations, outside = elements(block, "<invoke name=", "</invoke>")
            for one in invocations:
                name, lost = one.head.strip("\"' "), ""
                if not name:
                    malformed.append(Malformed(one.text, "<invoke name=…> names no tool"))
                    continue
                values, lost = elements(one.body, "<parameter name=", "</parameter>")
                keys, properties = [value.head.strip("\"' ") for value in values], properties_of(tools, name)
                arguments = {
                    key: typed_or_guessed(value.body.strip(), properties.get(key))
                    for key, value in zip(keys, values, strict=True)
                }
                calls.append(ToolCall(name, write_json(arguments)))
                outside += lost
            if outside or not invocations:
                reason = 'a call is written as <invoke name="…"><parameter name="…">value</parameter></invoke>'
                malformed.append(Malformed(outside or f"{OPENING}{block}{CLOSING}", reason))
        if rest:
            malformed.append(unclosed(rest, CLOSING))
        return Parsed(before if found else text, calls, malformed)

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        values = "".join(
            f'<parameter name="{key}">{value if isinstance(value, str) else write_json(value)}</parameter>\n'
            for key, value in arguments.items()
        )
        return f'{OPENING}\n<invoke name="{name}">\n{values}</invoke>\n{CLOSING}'
