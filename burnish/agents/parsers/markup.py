"""Tags and what is between them, read in one pass: `<tool_call>…</tool_call>`, `<parameter=query>…</parameter>`."""

from dataclasses import dataclass
from typing import Any

from burnish.agents.parsers.jsontext import write_json


@dataclass(frozen=True)
class Element:
    """`<parameter=query>cats</parameter>`: head `query`, body `cats`."""

    head: str
    body: str
    text: str


def blocks(text: str, opening: str, closing: str) -> tuple[str, list[str], str]:
    """The text before the first `opening`, the insides of the closed blocks, and an unclosed block at the end."""
    start = text.find(opening)
    if start < 0:
        return text, [], ""
    before = text[:start]
    found: list[str] = []
    while start >= 0:
        end = text.find(closing, start + len(opening))
        if end < 0:
            return before, found, text[start:]
        found.append(text[start + len(opening) : end])
        start = text.find(opening, end + len(closing))
    return before, found, ""


def elements(text: str, opening: str, closing: str) -> tuple[list[Element], str]:
    """The elements in `text`, in order, and all text outside of them (without blanks at both ends)."""
    found: list[Element] = []
    outside: list[str] = []
    at = 0
    while (start := text.find(opening, at)) >= 0:
        head_end = text.find(">", start + len(opening))
        if head_end < 0:
            break
        head = text[start + len(opening) : head_end]
        if "<" in head:  # the opening tag was cut short, and this is the end of another
            outside.append(text[at : head_end + 1])
            at = head_end + 1
            continue
        end = text.find(closing, head_end + 1)
        if end < 0:
            break
        outside.append(text[at:start])
        at = end + len(closing)
        found.append(Element(head, text[head_end + 1 : end], text[start:at]))
    outside.append(text[at:])
    return found, "".join(outside).strip()


def after_thought(text: str) -> str:
    """The turn without its thought, whose opening tag may be in the prompt."""
    thought, tag, rest = text.partition("</think>")
    return rest if tag else thought


def written(value: Any) -> str:
    """A value as text between tags."""
    return value if isinstance(value, str) else write_json(value)
