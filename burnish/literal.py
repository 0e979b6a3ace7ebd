"""Texts of files and models on a terminal: shown, never obeyed.

Whatever comes from a row, a column's name or a response passes through here on its way to stdout, stderr or the log.
"""

import json
import re
import sys
from typing import Any, TextIO

# Everything that moves the cursor, changes the terminal or the direction of the text, or is half a character.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def literal(text: str) -> str:
    """The text with its control characters as codes (\\x1b); line ends and tabs stay."""
    return _CONTROL.sub(lambda found: _code(ord(found[0])), text)


def one_line(text: str) -> str:
    """The same with line ends as codes too, for what must not look like the line of another."""
    return literal(text).replace("\n", "\\n")


def print_text(text: object = "", file: TextIO | None = None) -> None:
    """Print a text and a line end. All that burnish prints goes through here or through rich, with `literal` texts."""
    print(literal(str(text)), file=file or sys.stdout, flush=True)


def json_text(value: Any, **options: Any) -> str:
    """The value as JSON for people: other scripts as they are, control characters as JSON's own codes."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _code(point: int) -> str:
    return f"\\x{point:02x}" if point < 256 else f"\\u{point:04x}"
