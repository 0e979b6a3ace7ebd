"""`qwen3_coder`: tags without types, whose values the tool's schema gives a type.

    <tool_call>
    <function=search>
    <parameter=query>
    cats
    </parameter>
    </function>
    </tool_call>

What was cut off at the end counts as closed. All text from the first `<tool_call>` on that is no call is dropped. The
format cannot carry the text `null`, and no text with `</parameter>`, `<parameter=` or `</function>` in it.

How it differs from the recorded results: a value of type boolean that is neither true nor false stays text (there: it
is false), and a list or object is JSON first and a Python literal second (there: `[true, null]` stays text).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.agents.parsers import Parsed, Schema, ToolCall, ToolParser
from burnish.agents.parsers.reading import by_schema, properties_of, write_json, written

BLOCK, FUNCTION, PARAMETER = "<tool_call>", "<function=", "<parameter="
_VALUE_END = re.compile(r"</parameter>|(?=<parameter=)|(?=</function>)|\Z")
_NEXT = re.compile(r"<parameter=|</function>|<function=|<tool_call>")


class Qwen3CoderParser(ToolParser):
    def parse(self, text: str, tools: Sequence[Schema] = ()) -> Parsed:
        start = text.find(BLOCK)
        if start < 0 or text.find(FUNCTION, start) < 0:
            parsed, found = Parsed(text), text.find(FUNCTION)
            if start >= 0:
                parsed.add(f"there is no {FUNCTION}name> after {BLOCK}", text[start:])
            elif found >= 0:
                parsed.add(f"{FUNCTION}name> is not inside {BLOCK}", text[found:])
            return parsed
        parsed, at = Parsed(text[:start]), start
        while (found := text.find(FUNCTION, at)) >= 0:
            head = text.find(">", found)
            name = text[found + len(FUNCTION) : head].strip()
            if head < 0 or not name or "<" in name:
                parsed.add(f"{FUNCTION}… has no name that ends in >", text[found : head + 1 or None])
                at = len(text) if head < 0 else head + 1
                continue
            arguments, at = _arguments(text, head + 1, properties_of(tools, name), parsed)
            parsed.calls.append(ToolCall(name, write_json(arguments)))
        return parsed

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        values = "".join(f"{PARAMETER}{key}>\n{written(value)}\n</parameter>\n" for key, value in arguments.items())
        return f"{BLOCK}\n{FUNCTION}{name}>\n{values}</function>\n</tool_call>"


def _arguments(text: str, at: int, properties: Mapping[str, Any], parsed: Parsed) -> tuple[dict[str, Any], int]:
    """The parameters from `at` on, up to the end of the function, and where that is."""
    arguments: dict[str, Any] = {}
    while found := _NEXT.search(text, at):
        if found[0] != PARAMETER:
            return arguments, found.end() if found[0] == "</function>" else found.start()
        end = _VALUE_END.search(text, found.end())
        assert end is not None  # the end of the text is one
        name, closed, value = text[found.end() : end.start()].partition(">")
        if not closed or not name.strip():
            parsed.add(f"{PARAMETER}… has no name that ends in >", text[found.start() : end.end()])
        else:
            name, value = name.strip(), value.removeprefix("\n").removesuffix("\n")
            arguments[name] = None if value.lower() == "null" else by_schema(value, properties.get(name))
        at = end.end()
    return arguments, len(text)
