"""`deepseek_v4`: invocations whose parameters say themselves whether they are strings or JSON.

    <｜DSML｜tool_calls>
    <｜DSML｜invoke name="search">
    <｜DSML｜parameter name="query" string="true">cats</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜tool_calls>

The thought, up to `</think>`, is dropped, and so is what follows the calls.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.agents.parsers import Parsed, Schema, ToolCall, ToolParser
from burnish.agents.parsers.reading import Element, after_thought, elements, guessed, write_json, written

PADDING, END_OF_TURN = "<|pad|>", "<｜end▁of▁sentence｜>"
MARK = "｜DSML｜"
OPENING, CLOSING = f"<{MARK}tool_calls>", f"</{MARK}tool_calls>"
INVOKE, PARAMETER = (f"<{MARK}invoke name=", f"</{MARK}invoke>"), (f"<{MARK}parameter name=", f"</{MARK}parameter>")
_HEAD = re.compile(r'"([^"]*)" string="(true|false)"')


class DeepseekV4Parser(ToolParser):
    def parse(self, text: str, tools: Sequence[Schema] = ()) -> Parsed:
        text = after_thought(text.replace(PADDING, "").removesuffix(END_OF_TURN))
        before, opening, section = text.partition(OPENING)
        if not opening:
            return Parsed(text)
        section, closing, _ = section.partition(CLOSING)
        parsed = Parsed(before.removesuffix("\n\n"))
        invocations, outside = elements(section, *INVOKE)
        for one in invocations:
            name = one.head.strip('" ')
            call = ToolCall(name, write_json(_arguments(one, parsed))) if name else f"{INVOKE[0]}…> names no tool"
            parsed.add(call, one.text)
        if not closing and (outside or not invocations):
            parsed.unclosed(outside or opening, CLOSING)
        elif outside or not invocations:
            parsed.add(f'a call is {INVOKE[0]}"…">…{INVOKE[1]}', outside or opening + closing)
        return parsed

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        values = "".join(
            f'{PARAMETER[0]}"{key}" string="{write_json(isinstance(value, str))}">{written(value)}{PARAMETER[1]}\n'
            for key, value in arguments.items()
        )
        return f'{OPENING}\n{INVOKE[0]}"{name}">\n{values}{INVOKE[1]}\n{CLOSING}'


def _arguments(invocation: Element, parsed: Parsed) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    form = f'{PARAMETER[0]}"…" string="true|false">value{PARAMETER[1]}'
    values, outside = elements(invocation.body, *PARAMETER)
    for value in values:
        head = _HEAD.fullmatch(value.head.strip())
        if head is None:
            parsed.add(f"a parameter is written as {form}", value.text)
        else:
            arguments[head[1]] = value.body if head[2] == "true" else guessed(value.body)
    if outside:
        parsed.add(f"a parameter is written as {form}", outside)
    return arguments
