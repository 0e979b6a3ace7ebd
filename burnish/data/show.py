"""A row as a person reads it: who said what, what is compared with, what was answered.

Consumes a row of a file, in whatever state it is, and hands on `Block`s of text, which `print_blocks` prints: wrapped
on a terminal, line by line elsewhere. With a `ChatRenderer` the messages are the exact text that a model is prompted
with or, of a conversation, taught. Texts of a file are shown as they are: nothing in them is markup, and control
characters are shown by their codes, so that a row can neither restyle the output nor command the terminal. Only bytes
are summed up.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from burnish.data.chat import ChatRenderer, to_messages
from burnish.data.files import Row
from burnish.data.report import BESIDE_RESPONSES
from burnish.data.row import find_prompt_key
from burnish.data.sft import tools_of
from burnish.errors import UserError
from burnish.literal import literal, one_line

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/=]{64,})")
_IMAGES = {b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF"}

#: Columns that are said first, and how.
_FIRST = {"data_source": "data source", "ability": "ability", "agent_name": "agent"}


@dataclass(frozen=True)
class Block:
    """A heading and a text, below it, or behind it where it is one line that may stand there."""

    heading: str
    text: str
    style: str = "bold"
    below: bool = True


def row_blocks(row: Row, renderer: ChatRenderer | None = None, prompt_key: str = "prompt") -> list[Block]:
    """All that a row holds, in the order of reading."""
    left = {name: value for name, value in row.items() if value is not None}
    blocks = [_fact(title, left.pop(name)) for name, title in _FIRST.items() if name in left]
    key = find_prompt_key(left, prompt_key)
    for name in filter(None, (key, "messages")):
        if name in left:
            blocks += _messages(left.pop(name), row, renderer, is_prompt=name == key)
    for name in ("chosen", "rejected"):
        if name in left:
            blocks += _side(name, left.pop(name))
    if "responses" in left:
        blocks += _responses(left)
    if "tools" in left:
        blocks.append(_fact("tools", _tool_names(left.pop("tools"))))
    reward_model = left.get("reward_model")
    if isinstance(reward_model, Mapping):
        rest = {name: value for name, value in left.pop("reward_model").items() if value is not None}
        blocks.append(_fact("ground truth", rest.pop("ground_truth", None)))
        left = {**({"reward_model": rest} if rest else {}), **left}
    return blocks + [_fact(name, value) for name, value in left.items()]


def print_blocks(console: Console, blocks: Iterable[Block], special_tokens: Sequence[str] = ()) -> None:
    """Print the blocks below each other; `special_tokens` stand out where there are colours."""
    for block in blocks:
        empty = "" if block.text.strip() else " (white space)" if block.text else " (empty)"
        heading, text = Text(f"{one_line(block.heading)}{empty}:", style=block.style), Text(literal(block.text))
        if special_tokens:
            text.highlight_words(special_tokens, "cyan")
        if not block.below and "\n" not in block.text:
            _print(console, Text.assemble(heading, " ", text), 2)
        else:
            _print(console, heading, 2)
            if block.text:
                _print(console, text, 4)


def _print(console: Console, text: Text, indent: int) -> None:
    if console.is_terminal:
        text.overflow = "fold"
        console.print(Padding(text, (0, 0, 0, indent)))
        return
    for line in text.plain.split("\n"):  # for a pipe: a line is broken only where the text breaks it
        console.file.write(f"{' ' * indent}{line}\n" if line else "\n")


def _messages(value: Any, row: Row, renderer: ChatRenderer | None, is_prompt: bool) -> list[Block]:
    if renderer is None:
        return _by_role(value)
    try:
        tools = None if is_prompt else tools_of(row)
        text = renderer.text(to_messages(value), tools, generation_prompt=is_prompt)
    except UserError as error:
        return [*_by_role(value), Block("cannot be rendered", str(error), "bold red", below=False)]
    (count,) = renderer.token_counts([text])
    what = "prompt" if is_prompt else "conversation"
    end = json.dumps(text[-16:], ensure_ascii=False)  # white space there matters, and cannot be seen
    return [Block(f"{what}, {count} tokens, ends with {end}", text, "bold green")]


def _by_role(value: Any) -> list[Block]:
    """Messages as they are in the file, also where they are not what training takes."""
    if isinstance(value, str):
        return [Block("user (plain text)", value, "bold green")]
    if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
        return [_fact("prompt", value)]
    blocks = []
    for message in value:
        role = str(message.get("role"))
        fields = {name: inner for name, inner in message.items() if inner is not None and name != "role"}
        content = fields.pop("content", None)
        if content is not None or not fields:
            blocks.append(Block(role, _content(content), "bold green"))
        blocks += [Block(f"{role}, {name}", _compact(inner), "bold green") for name, inner in fields.items()]
    return blocks


def _content(content: Any) -> str:
    """The text of a message; of content in parts, the texts and what stands for the other parts."""
    if not isinstance(content, list):
        return _compact(content)
    parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
    return "".join(_compact(part if text is None else text) for part, text in zip(content, parts, strict=True))


def _side(name: str, value: Any) -> list[Block]:
    if isinstance(value, list):
        return [Block(f"{name}, {block.heading}", block.text, "bold yellow") for block in _by_role(value)]
    return [Block(name, _compact(value), "bold yellow")]


def _responses(left: Row) -> list[Block]:
    """The responses with what belongs to each; takes the columns it shows out of `left`."""
    given = left.pop("responses")
    responses = given if isinstance(given, list) else [given]
    beside = {
        title: left.pop(name)
        for name, title in BESIDE_RESPONSES.items()
        if isinstance(left.get(name), list) and len(left[name]) == len(responses)
    }
    blocks = []
    for i, response in enumerate(responses):
        facts = [f"{title} {_number(values[i])}" for title, values in beside.items()]
        blocks.append(Block(" · ".join([f"response {i}", *facts]), _compact(response), "bold yellow"))
    return blocks


def _tool_names(tools: Any) -> str:
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except json.JSONDecodeError:
            return tools
    schemas = tools if isinstance(tools, list) else [tools]
    functions = [s.get("function") or s if isinstance(s, Mapping) else s for s in schemas]
    return ", ".join(str(f.get("name")) if isinstance(f, Mapping) else str(f) for f in functions)


def _fact(title: str, value: Any) -> Block:
    return Block(title, _compact(value), below=False)


def _compact(value: Any) -> str:
    """A text as it is, anything else as JSON; bytes and pictures are summed up."""
    summed = _summed(value)
    return summed if isinstance(summed, str) else json.dumps(summed, ensure_ascii=False, default=str)


def _summed(value: Any) -> Any:
    if isinstance(value, bytes):
        kind = next((name for start, name in _IMAGES.items() if value.startswith(start)), None)
        return f"<{kind + ' image, ' if kind else ''}{len(value):,} bytes>"
    if isinstance(value, str):
        return _DATA_URL.sub(lambda found: f"<{found[1]}, {len(found[2]) * 3 // 4:,} bytes>", value)
    if isinstance(value, Mapping):
        return {str(name): _summed(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_summed(inner) for inner in value]
    return value


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
