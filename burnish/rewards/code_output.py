"""Whether a program wrote what was expected. Compared outside the sandbox, which the expected output never enters.

Lines are compared one by one, word by word; empty lines and the number of blanks do not count. A word that is written
differently still agrees where both are numbers and at least one is written with a point or an exponent: `3` and `3.0`
are equal; where the *expected* number has a point or an exponent, the other may differ by a millionth (of its size, or
absolutely below 1). Whole numbers are compared as text, so `007` is not `7` and no digit of a long one is overlooked.
Which words share a line counts, and so does upper or lower case. No torch.
"""

import re
from decimal import Decimal

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
TOLERANCE = Decimal("1e-6")


def same_output(got: str, expected: str) -> bool:
    ours, theirs = _lines(got), _lines(expected)
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def _lines(text: str) -> list[list[str]]:
    return [words for line in text.splitlines() if (words := line.split())]


def _same_line(got: list[str], expected: list[str]) -> bool:
    return len(got) == len(expected) and all(map(_same_word, got, expected))


def _same_word(got: str, expected: str) -> bool:
    if got == expected:
        return True
    loose = _is_loose(expected)
    if not (loose or _is_loose(got)) or not (_NUMBER.fullmatch(got) and _NUMBER.fullmatch(expected)):
        return False
    one, other = Decimal(got), Decimal(expected)
    return one == other or (loose and abs(one - other) <= TOLERANCE * max(Decimal(1), abs(other)))


def _is_loose(word: str) -> bool:
    return any(sign in word for sign in ".eE")
