"""The program in a response, as `program_in(response, tests)`: all of it where that is Python, else a block.

Of several blocks it is the one that fits the tests; of those, one that is named Python; of those, one that is closed (a
response may have been cut short); and of those, the last. So an example or a few asserts after the solution do no harm.
A block fits where it defines a function or a class that the tests use, or reads input where they are of standard input
and output.

A fence is three or more backticks or tildes. It opens a block at the start of a line, or after some text (backticks,
and then at most the language may follow), and the same kind, as long or longer, closes it: on a separate line, or right
after the last line of the program. Lines are read one by one, so that time grows only linearly with the text. No torch.
"""

import ast
import re
import textwrap
import warnings
from dataclasses import dataclass

from burnish.rewards.code_tests import FunctionCalls, Pairs, Tests

_FENCE = re.compile(r"`{3,}|^[ \t]*~{3,}")
_AFTER_LANGUAGE = re.compile(r"[^\w+.#-]")
_PYTHON = ("python", "py", "python3")
_DEFINED = re.compile(r"^(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)|^(\w+)[ \t]*=[ \t]*lambda\b", re.MULTILINE)
_READS = re.compile(r"\b(?:(?:input|open)[ \t]*\(|(?:stdin|fileinput)\b)")
LONGEST_BARE = 100_000  # characters of a response that is a program without a fence


@dataclass
class _CodeBlock:
    fence: str
    language: str
    lines: list[str]
    is_closed: bool = False

    @property
    def program(self) -> str:
        return textwrap.dedent("".join(line + "\n" for line in self.lines))


def program_in(response: str, tests: Tests) -> str | None:
    """The source text of the answer, or None."""
    if _is_python(response):
        return response
    blocks = _blocks(response)
    if not blocks:
        return None
    programs = [block.program for block in blocks]
    marks = [
        (_fits(program, tests), block.language in _PYTHON, block.is_closed, number)
        for number, (block, program) in enumerate(zip(blocks, programs, strict=True))
    ]
    return programs[max(marks)[-1]]


def _blocks(response: str) -> list[_CodeBlock]:
    blocks: list[_CodeBlock] = []
    for line in response.replace("\r\n", "\n").split("\n"):
        block = blocks[-1] if blocks else None
        if block is None or block.is_closed:
            if found := _FENCE.search(line):
                info = line[found.end() :].strip()
                language = _AFTER_LANGUAGE.split(info, maxsplit=1)[0]
                in_a_sentence = line[: found.start()].strip() and info != language  # code, or a word about it
                if "`" not in info and not in_a_sentence:
                    blocks.append(_CodeBlock(found[0].strip(), language.lower(), []))
            continue
        text, fence = line.rstrip(), block.fence
        before = text.rstrip(fence[0])  # what precedes a closing fence at the end of the line
        block.is_closed = len(text) - len(before) >= len(fence) and fence not in before
        block.lines += [line] if not block.is_closed else [before] if before.strip() else []
    return blocks


def _fits(program: str, tests: Tests) -> bool:
    if isinstance(tests, Pairs):
        return bool(_READS.search(program))
    wanted = {tests.function, "Solution"} if isinstance(tests, FunctionCalls) else set(tests.names.take)
    return any(one in wanted or other in wanted for one, other in _DEFINED.findall(program))


def _is_python(text: str) -> bool:
    if not text.strip() or len(text) > LONGEST_BARE:
        return False
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
