r"""How a question is put to math-verify: consumes two forms that are compared, hands on the LaTeX that it is sent.

`may_be_read` says whether it may be sent: what a policy wrote goes to a parser.
"""

import re

from burnish.rewards.equivalence.forms import Form, Scalar
from burnish.rewards.equivalence.units import is_unit

# What math-verify may read. No quotes and no names with two underscores: nothing that reads as Python.
_MATHEMATICAL = re.compile(r"[A-Za-z0-9\s\\{}()\[\]^_+\-*/=<>|.,:;!&%]*")
_OVERLOOKED = re.compile(r"__|\\text|\d_")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_BARE_FRACTION = re.compile(r"\\frac\s*(\\pi|\d)(?:\s*(\\pi|\d))?")  # \frac\pi2 it does not read
_COMMAND = re.compile(r"\\text\{[^{}]*\}|\\[a-zA-Z]+")
_CAPITAL = re.compile(r"\\[a-zA-Z]+|[A-Z]")


def texts_of(answer: Form, truth: Form) -> tuple[str, str]:
    """Both without their units, and with capitals that are no small letters, where one text has both."""
    said, wanted = _without_units(answer), _without_units(truth)
    if not (_one_case(said) and _one_case(wanted)):  # math-verify takes capitals for small letters
        said, wanted = (_CAPITAL.sub(_indexed, text) for text in (said, wanted))
    return said, wanted


def may_be_read(text: str) -> bool:
    """Of words and of the base of a number math-verify takes no notice."""
    return _MATHEMATICAL.fullmatch(text) is not None and not _OVERLOOKED.search(text)


def letters_of(text: str) -> set[str]:
    """The letters that stand for something."""
    return {character for character in _COMMAND.sub("", text) if character.isalpha()}


def _without_units(form: Form) -> str:
    """The text for math-verify, which takes `1,234` for one number and `1, 234` for two, as `tidy` does with `;`."""
    text = form.core if isinstance(form, Scalar) else _TEXT.sub(_if_more, form.text).replace("%", "")
    return _BARE_FRACTION.sub(_braced, text).replace(";", ", ")


def _if_more(text: re.Match[str]) -> str:
    return "" if is_unit(text[1]) else text[0]


def _braced(fraction: re.Match[str]) -> str:
    return f"\\frac{{{fraction[1]}}}" + (f"{{{fraction[2]}}}" if fraction[2] else "")


def _one_case(text: str) -> bool:
    letters = letters_of(text)
    return not any(letter.islower() and letter.upper() in letters for letter in letters)


def _indexed(match: re.Match[str]) -> str:
    return f"{match[0]}_{{0}}" if len(match[0]) == 1 else match[0]
