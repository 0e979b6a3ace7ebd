"""Rows as a person reads them: `Selection` picks those that a user means, `row_blocks` makes text of any row.

Nothing in the texts of a file is markup, and control characters are shown by their codes, so that a row can neither
restyle the output nor command the terminal.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from burnish.data.chat import ChatRenderer, to_messages
from burnish.data.dataset import find_prompt_key
from burnish.data.examples import tools_of
from burnish.data.files import DataFile, Row, lookup
from burnish.data.report import PER_RESPONSE
from burnish.errors import ConfigError, DataError, UserError
from burnish.literal import literal, one_line

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/=]{64,})")
_IMAGES = {b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF"}

#: Columns shown first, and their titles.
_FIRST = {"data_source": "data source", "ability": "ability", "agent_name": "agent"}

FEW = 3  # rows by default, and values in a message

Span = tuple[int, int | None]  # the first row, and the one after the last; None: to the end of the file


def parse_condition(text: str) -> tuple[str, str]:
    column, _, value = text.partition("=")
    if "=" not in text or not column:
        raise ConfigError(f"--where {text}: expected COLUMN=VALUE, for example --where data_source=openai/gsm8k")
    return column, value


def parse_rows(text: str) -> list[Span]:
    spans: list[Span] = []
    for part in text.split(","):
        first, colon, end = (piece.strip() for piece in part.partition(":"))
        if not all(number.isdecimal() for number in (first, end) if number) or not (first or colon):
            raise ConfigError(f"--rows {text}: expected a row number, a range such as 0:3, or several: 0,7,9")
        start = int(first or 0)
        stop = start + 1 if not colon else int(end) if end else None
        if stop is not None and stop <= start:
            raise ConfigError(f"--rows {text}: {part.strip()} holds no row; the end comes after the start")
        spans.append((start, stop))
    return spans


@dataclass(frozen=True)
class Selection:
    """The rows of `spans`, or `draw` rows drawn with `seed`, or the first few; only those that meet all conditions."""

    spans: Sequence[Span] = ()
    draw: int | None = None
    seed: int = 0
    conditions: Sequence[tuple[str, str]] = ()  # columns, and the value that each has to have

    def rows(self, file: DataFile) -> list[tuple[int, Row]]:
        """The rows with their numbers, in the order asked for; no more of the file is read than needed."""
        for column, _ in self.conditions:
            file.require_column(column, "Name one of them in --where")
        numbers = self._numbers(file)
        wanted, last, found = set(numbers), max(numbers), dict[int, Row]()
        for number, row in enumerate(file):
            if number in wanted:
                found[number] = row
            if number == last:
                break
        return [(number, found[number]) for number in numbers]

    def _numbers(self, file: DataFile) -> list[int]:
        if self.draw is not None:
            population: Sequence[int] = self._meeting(file) if self.conditions else range(file.rows)
            return sorted(random.Random(self.seed).sample(population, min(self.draw, len(population))))
        if not self.spans:
            return self._meeting(file, most=FEW)
        for start, _ in self.spans:
            if start >= file.rows:
                raise DataError(f"--rows: {file.path} has no row {start}; its rows are 0 to {file.rows - 1}")
        asked = [n for start, stop in self.spans for n in range(start, min(stop or file.rows, file.rows))]
        meeting = set(self._meeting(file, among=set(asked)) if self.conditions else asked)
        return [n for n in asked if n in meeting]

    def _meeting(self, file: DataFile, among: Container[int] | None = None, most: int | None = None) -> list[int]:
        """The rows that meet all conditions, at most `most`; DataError with the values there are, where none does."""
        found: list[int] = []
        values: Counter[str] = Counter()
        for number, row in enumerate(file):
            if among is not None and number not in among:
                continue
            if all(value in _written(lookup(row, column)) for column, value in self.conditions):
                found.append(number)
                if len(found) == most:
                    break
            elif not found:
                values[f"{lookup(row, self.conditions[0][0])!s:.60}"] += 1
        if not found:
            there = ", ".join(f"{value} ({count:,})" for value, count in values.most_common(FEW))
            asked = " and ".join(f"{column}={value}" for column, value in self.conditions)
            raise DataError(f"--where {asked}: {file.path} has no such row; {self.conditions[0][0]} is mostly {there}")
        return found


def _written(value: Any) -> tuple[str, ...]:
    """How a user may write a value."""
    return (value,) if isinstance(value, str) else (str(value), json.dumps(value, default=str))


@dataclass(frozen=True)
class TextBlock:
    heading: str
    text: str
    style: str = "bold"
    below: bool = True


def row_blocks(row: Row, renderer: ChatRenderer | None = None, prompt_key: str = "prompt") -> list[TextBlock]:
    left = {name: value for name, value in row.items() if value is not None}
    blocks = [_fact(title, left.pop(name)) for name, title in _FIRST.items() if name in left]
    key = find_prompt_key(left, prompt_key)
    for name in filter(None, (key, "messages")):
        if name in left:
            blocks += _messages(left.pop(name), row, renderer, is_prompt=name == key)
    for name in ("chosen", "rejected"):
        if isinstance(side := left.pop(name, None), list):
            blocks += [TextBlock(f"{name}, {block.heading}", block.text, "bold yellow") for block in _by_role(side)]
        elif side is not None:
            blocks.append(TextBlock(name, _compact(side), "bold yellow"))
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


def print_blocks(console: Console, blocks: Iterable[TextBlock], special_tokens: Sequence[str] = ()) -> None:
    """Wrapped on a terminal, line by line elsewhere; `special_tokens` stand out where there are colours."""
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


def _messages(value: Any, row: Row, renderer: ChatRenderer | None, is_prompt: bool) -> list[TextBlock]:
    if renderer is None:
        return _by_role(value)
    try:
        tools = None if is_prompt else tools_of(row)
        text = renderer.text(to_messages(value), tools, generation_prompt=is_prompt)
    except UserError as error:
        return [*_by_role(value), TextBlock("cannot be rendered", str(error), "bold red", below=False)]
    (count,) = renderer.token_counts([text])
    what = "prompt" if is_prompt else "conversation"
    end = json.dumps(text[-16:], ensure_ascii=False)  # white space there matters, and cannot be seen
    return [TextBlock(f"{what}, {count} tokens, ends with {end}", text, "bold green")]


def _by_role(value: Any) -> list[TextBlock]:
    """Messages as they are in the file, also where they are not what training takes."""
    if isinstance(value, str):
        return [TextBlock("user (plain text)", value, "bold green")]
    if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
        return [_fact("prompt", value)]
    blocks = []
    for message in value:
        role = str(message.get("role"))
        fields = {name: inner for name, inner in message.items() if inner is not None and name != "role"}
        content = fields.pop("content", None)
        if content is not None or not fields:
            if isinstance(content, list):  # parts: the texts, and JSON for the others
                parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
                pairs = zip(content, parts, strict=True)
                content = "".join(_compact(part if text is None else text) for part, text in pairs)
            blocks.append(TextBlock(role, _compact(content), "bold green"))
        blocks += [TextBlock(f"{role}, {name}", _compact(inner), "bold green") for name, inner in fields.items()]
    return blocks


def _responses(left: Row) -> list[TextBlock]:
    given = left.pop("responses")
    responses = given if isinstance(given, list) else [given]
    per_response = {
        title: left.pop(name)
        for name, title in PER_RESPONSE.items()
        if isinstance(left.get(name), list) and len(left[name]) == len(responses)
    }
    blocks = []
    for i, response in enumerate(responses):
        values = {title: column[i] for title, column in per_response.items()}
        facts = [f"{title} {v:.4g}" if isinstance(v, float) else f"{title} {v}" for title, v in values.items()]
        blocks.append(TextBlock(" · ".join([f"response {i}", *facts]), _compact(response), "bold yellow"))
    return blocks


def _tool_names(tools: Any) -> str:
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):
            return tools
    schemas = tools if isinstance(tools, list) else [tools]
    functions = [s.get("function") or s if isinstance(s, Mapping) else s for s in schemas]
    return ", ".join(str(f.get("name")) if isinstance(f, Mapping) else str(f) for f in functions)


def _fact(title: str, value: Any) -> TextBlock:
    return TextBlock(title, _compact(value), below=False)


def _compact(value: Any) -> str:
    short = _summarised(value)
    return short if isinstance(short, str) else json.dumps(short, ensure_ascii=False, default=str)


def _summarised(value: Any) -> Any:
    if isinstance(value, bytes):
        kind = next((name for start, name in _IMAGES.items() if value.startswith(start)), None)
        return f"<{kind + ' image, ' if kind else ''}{len(value):,} bytes>"
    if isinstance(value, str):
        return _DATA_URL.sub(lambda found: f"<{found[1]}, {len(found[2]) * 3 // 4:,} bytes>", value)
    if isinstance(value, Mapping):
        return {str(name): _summarised(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_summarised(inner) for inner in value]
    return value
