"""The descriptions of a function and its parameters, from its docstring.

The description is the first paragraph. A parameter's description is found in the usual ways of writing it:

    Args:                          Parameters                     :param city: where
        city (str): where          ----------                     :param str city: where
                                   city : str
    city: where                        where

It continues on the lines below that are indented further.
"""

import inspect
import re
from collections.abc import Collection, Iterator

_ENTRY = re.compile(
    r"\s*(?P<rest>:param\s+(?:[^:]*\s)?|[-*]\s+)?`{0,2}(?P<name>\w+)`{0,2}\s*(?:\([^()]*\)\s*)?:(?P<text>.*)"
)
_HEADER = re.compile(
    r"\s*(args|arguments|parameters|params|returns?|raises|yields|examples?|notes?)\s*:?\s*", re.IGNORECASE
)
_UNDERLINE = re.compile(r"\s*-{3,}\s*")


def read_docstring(text: str | None, parameters: Collection[str]) -> tuple[str, dict[str, str]]:
    """The description, and by name the descriptions of those `parameters` that have one."""
    lines = inspect.cleandoc(text or "").splitlines()
    return " ".join(_first_paragraph(lines, parameters)), dict(_entries(lines, parameters))


def _first_paragraph(lines: list[str], parameters: Collection[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if not line.strip() or _HEADER.fullmatch(line) or (number and _entry(line, parameters)):
            return
        yield line.strip()


def _entries(lines: list[str], parameters: Collection[str]) -> Iterator[tuple[str, str]]:
    numpy = False  # what follows a colon there is a type
    for number, line in enumerate(lines):
        if _UNDERLINE.fullmatch(line):
            numpy = True
        entry = _entry(line, parameters)
        if entry is None or not number:
            continue
        indent, more = _indent(line), []
        for further in lines[number + 1 :]:
            if not further.strip() or _indent(further) <= indent:
                break
            more.append(further.strip())
        words = more if numpy and not entry["rest"] else [entry["text"].strip(), *more]
        yield entry["name"], " ".join(words).strip()


def _entry(line: str, parameters: Collection[str]) -> re.Match[str] | None:
    found = _ENTRY.fullmatch(line)
    return found if found is not None and found["name"] in parameters else None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
