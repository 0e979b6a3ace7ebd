"""`gpt-oss`: messages of the harmony format, whose recipient is a function.

    <|start|>assistant<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"query": "cats"}<|call|>

Messages of the channel `analysis` (thoughts) are neither searched nor kept. The arguments are passed on as written.

How it differs from the recorded results: a call at the very beginning of a turn is read without `<|start|>assistant`,
which is then the end of the prompt.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.agents.parsers import Parsed, Schema, ToolCall, ToolParser
from burnish.agents.parsers.reading import read_json, write_json

PADDING = ("<|pad|>", "<|endoftext|>")
START, CALL, END = "<|start|>", "<|call|>", "<|end|>"
_THOUGHT = re.compile(r"(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>")
_TO = r"<\|channel\|>[^<]{0,200} to=functions\."
_HEADER = re.compile(rf"(?:<\|start\|>assistant|\A\s*){_TO}([^<]{{1,200}}) <\|constrain\|>json<\|message\|>")
_MEANT = re.compile(_TO)


class GptOssParser(ToolParser):
    keeps_end = True  # <|call|> ends a turn

    def parse(self, text: str, tools: Sequence[Schema] = ()) -> Parsed:
        for padding in PADDING:
            text = text.replace(padding, "")
        text = _without_thoughts(text)
        parsed = Parsed()
        done = 0
        while header := _HEADER.search(text, done):
            end = text.find(CALL, header.end())
            if end < 0:
                parsed.unclosed(text[header.start() :], CALL)
                break
            parsed.content += text[done : header.start()]
            done = end + len(CALL)
            parsed.add(_call(header[1].strip(), text[header.end() : end]), text[header.start() : done])
        rest = parsed.content = parsed.content + text[done:]
        if not parsed.malformed and (meant := _MEANT.search(rest)):
            form = f"{START}assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{{…}}{CALL}"
            parsed.add(f"the call is not of the form {form}", rest[meant.start() :])
        return parsed

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        header = f"{START}assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        return header + write_json(arguments) + CALL


def _without_thoughts(text: str) -> str:
    """A thought ends at `<|end|>`; one that another message begins in has no end, and stays."""
    kept, done = [], 0
    end = text.find(END)
    for thought in _THOUGHT.finditer(text):
        if thought.start() < done:
            continue
        end = end if end >= thought.end() else text.find(END, thought.end())
        if end < 0:
            break
        if text.find(START, thought.end(), end) < 0:
            kept.append(text[done : thought.start()])
            done = end + len(END)
    return "".join(kept) + text[done:]


def _call(name: str, arguments: str) -> ToolCall | str:
    if not name:
        return "there is no name after to=functions."
    try:
        read_json(arguments)
    except ValueError as error:
        if "deep" in str(error):
            return f"the arguments are {error}"
    return ToolCall(name, arguments)
