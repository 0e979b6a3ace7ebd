"""`react`: lines of plain text, `Thought:`, `Action:`, `Action Input:`, until a `Final Answer:`.

The input is a JSON object, or bare text for a tool's only (or first required) parameter. `Action: search[cats]` is read
too. A turn is read up to a line that begins with `Observation`: what the model writes after it is made up.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.agents.parsers import Parsed, Schema, ToolCall, ToolParser
from burnish.agents.parsers.reading import by_schema, is_text, parameters_of, properties_of, read_json, write_json

_LABEL = re.compile(
    r"^[ \t*]{0,8}(Thought|Action Input|Action|Final Answer|Observation)\b[ \t*]{0,8}(?::[ \t*]{0,8}|(?<=Observation))",
    re.MULTILINE | re.IGNORECASE,
)
_BRACKETS = re.compile(r"([\w.-]+)\[(.*)\]", re.DOTALL)
_FENCED = re.compile(r"```[\w-]{0,12}\s(.*)```", re.DOTALL)
_LIKE_JSON = re.compile(r"\{\s*[\"'}]")
INPUT = "input"  # the parameter of bare text where the tool is unknown


class ReactParser(ToolParser):
    def parse(self, text: str, tools: Sequence[Schema] = ()) -> Parsed:
        parsed, lines, number = Parsed(), _lines(text), 0
        while number < len(lines):
            label, value, written = lines[number]
            number += 1
            if label == "final answer":  # what follows an answer is no action
                parsed.content += written + "".join(line[2] for line in lines[number:])
                break
            if label != "action":
                if label == "action input":
                    parsed.add("there is an Action Input: without an Action: before it", written)
                else:
                    parsed.content += written
                continue
            given = None
            if number < len(lines) and lines[number][0] == "action input":
                given, written = lines[number][1], written + lines[number][2]
                number += 1
            parsed.add(_call(value, given, tools), written)
        return parsed

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"Action: {name}\nAction Input: {write_json(arguments)}"


def _lines(text: str) -> list[tuple[str, str, str]]:
    """Label, value and whole text of every labelled piece; the label of text before the first is empty."""
    found = []
    for label in _LABEL.finditer(text):
        if label[1].lower() == "observation":
            text = text[: label.start()]
            break
        found.append(label)
    ends = [*(label.start() for label in found), len(text)]
    before = text[: ends[0]]
    pieces = [
        (label[1].lower(), text[label.end() : end].strip(), text[label.start() : end])
        for label, end in zip(found, ends[1:], strict=True)
    ]
    return [("", before, before), *pieces] if before else pieces


def _call(action: str, given: str | None, tools: Sequence[Schema]) -> ToolCall | str:
    if given is None and (brackets := _BRACKETS.fullmatch(action)):
        action, given = brackets[1], brackets[2].strip()
    name = action.strip("`'\"[] \t")
    if not name or "\n" in name or not is_text(name):
        return "Action: must be followed by the name of one tool, on the same line"
    required = parameters_of(tools, name).get("required") or []
    if given is None:
        return f"the call of {name[:80]} has no Action Input: line" if required or not tools else ToolCall(name, "{}")
    fenced = _FENCED.fullmatch(given)
    given = fenced[1].strip() if fenced else given
    try:
        value = read_json(given)
    except ValueError as error:
        if _LIKE_JSON.match(given):
            return f"the Action Input is {error}; write its arguments as one JSON object"
        value = given
    if isinstance(value, dict):
        return ToolCall(name, write_json(value))
    if not given:
        return ToolCall(name, "{}")
    properties, bare = properties_of(tools, name), value if isinstance(value, str) else given
    parameter = next(iter([*required, *properties]), INPUT)
    return ToolCall(name, write_json({parameter: by_schema(bare, properties.get(parameter))}))
