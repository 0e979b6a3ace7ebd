"""The program in a response.

It is the last block between ```` ```python ```` (or `py`, `python3`) and ```` ``` ````; where there is none, the last
block between fences of any other kind; where there is no closed block, what follows the last opening fence (a response
that was cut short); and where there is no fence at all, the whole response, if it is Python. No torch.
"""

import ast
import re
import textwrap
import warnings

_BLOCK = re.compile(r"^[ \t]*```[ \t]*([\w+.-]*)[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
_OPEN = re.compile(r"^[ \t]*```[ \t]*[\w+.-]*[^\n`]*\n", re.MULTILINE)
_PYTHON = ("python", "py", "python3")
LONGEST_BARE = 100_000  # characters of a response without a fence; a longer one is no program


def program_in(response: str) -> str | None:
    """The source text of the answer, or None."""
    blocks = _BLOCK.findall(response)
    named = [text for language, text in blocks if language.lower() in _PYTHON]
    if named or blocks:
        return textwrap.dedent(named[-1] if named else blocks[-1][1])
    opened = list(_OPEN.finditer(response))
    if opened:
        return textwrap.dedent(response[opened[-1].end() :])
    return response if _is_python(response) else None


def _is_python(text: str) -> bool:
    if not text.strip() or len(text) > LONGEST_BARE:
        return False
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
