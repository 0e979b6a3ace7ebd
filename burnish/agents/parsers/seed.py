"""`seed`: tags of Seed-OSS, one function in each `<seed:tool_call>`. What follows the first call is dropped.

    <seed:tool_call>
    <function=search>
    <parameter=query>cats</parameter>
    </function>
    </seed:tool_call>

A value has the type of the schema; where that says nothing, it is JSON if it can be. Blanks around values are not kept.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.agents.parsers import Parsed, Schema, ToolCall, ToolParser
from burnish.agents.parsers.reading import blocks, elements, properties_of, typed_or_guessed, write_json, written

OPENING, CLOSING = "<seed:tool_call>", "</seed:tool_call>"


class SeedParser(ToolParser):
    def parse(self, text: str, tools: Sequence[Schema] = ()) -> Parsed:
        before, found, rest = blocks(text, OPENING, CLOSING)
        parsed = Parsed(before if found else text)
        for block in found:
            functions, outside = elements(block, "<function=", "</function>")
            if not functions or not (name := functions[0].head.strip()):
                reason = f"there is no <function=name>…</function> between {OPENING} and {CLOSING}"
                parsed.add(reason, f"{OPENING}{block}{CLOSING}")
                continue
            values, lost = elements(functions[0].body, "<parameter=", "</parameter>")
            properties = properties_of(tools, name)
            arguments = {
                one.head.strip(): typed_or_guessed(one.body.strip(), properties.get(one.head.strip())) for one in values
            }
            parsed.calls.append(ToolCall(name, write_json(arguments)))
            for one in functions[1:]:
                parsed.add(f"one function between {OPENING} and {CLOSING}", one.text)
            if lost or outside:
                parsed.add("this is outside of <parameter=name>…</parameter>", lost + outside)
        parsed.unclosed(rest, CLOSING)
        return parsed

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        values = "".join(f"<parameter={key}>{written(value)}</parameter>\n" for key, value in arguments.items())
        return f"{OPENING}\n<function={name}>\n{values}</function>\n{CLOSING}"
