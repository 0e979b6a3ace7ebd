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

from burnish.agents.parsers.base import Malformed, Parsed, Schema, ToolCall, ToolParser
from burnish.agents.parsers.jsontext import write_json
from burnish.agents.parsers.markup import Element, after_thought, elements, unclosed
from burnish.agents.parsers.values import guessed

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
        calls: list[ToolCall] = []
        malformed: list[Malformed] = []
        invocations, outside = elements(section, *INVOKE)
        for one in invocations:
            name = one.head.strip('" ')
            if name:
                calls.append(ToolCall(name, write_json(_arguments(one, malformed))))
            else:
                malformed.append(Malformed(one.text, f"{INVOKE[0]}…> names no tool"))
        if not closing and (outside or not invocations):
            malformed.append(unclosed(outside or opening, CLOSING))
        elif outside or not invocations:
            malformed.append(Malformed(outside or opening + closing, f'a call is {INVOKE[0]}"…">…{INVOKE[1]}'))
        return Parsed(before.removesuffix("\n\n"), calls, malformed)

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        values = "".join(
            f'{PARAMETER[0]}"{key}" string="true">{value}{PARAMETER[1]}\n'
            if isinstance(value, str)
            else f'{PARAMETER[0]}"{key}" string="false">{write_json(value)}{PARAMETER[1]}\n'
            for key, value in arguments.items()
        )
        return f'{OPENING}\n{INVOKE[0]}"{name}">\n{values}{INVOKE[1]}\n{CLOSING}'


def _arguments(invocation: Element, malformed: list[Malformed]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    form = f'{PARAMETER[0]}"…" string="true|false">value{PARAMETER[1]}'
    values, outside = elements(invocation.body, *PARAMETER)
    for value in values:
        head = _HEAD.fullmatch(value.head.strip())
        if head is None:
            malformed.append(Malformed(value.text, f"a parameter is written as {form}"))
        else:
            arguments[head[1]] = value.body if head[2] == "true" else guessed(value.body)
    if outside:
        malformed.append(Malformed(outside, f"a parameter is written as {form}"))
    return arguments
