r"""How a question is put to math-verify: consumes two forms that are compared, produces the LaTeX that it is sent.

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
        said, wanted = (
            _CAPITAL.sub(lambda match: match[0] + "_{0}" * (len(match[0]) == 1), text) for text in (said, wanted)
        )
    return said, wanted


def may_be_read(text: str) -> bool:
    """Of words and of the base of a number math-verify takes no notice."""
    return _MATHEMATICAL.fullmatch(text) is not None and not _OVERLOOKED.search(text)


def letters_of(text: str) -> set[str]:
    """The letters that stand for something."""
    return {character for character in _COMMAND.sub("", text) if character.isalpha()}


def _without_units(form: Form) -> str:
    """The text for math-verify, which takes `1,234` for one number and `1, 234` for two, as `tidy` does with `;`."""
    if isinstance(form, Scalar):
        text = form.core
    else:
        text = _TEXT.sub(lambda words: "" if is_unit(words[1]) else words[0], form.text).replace("%", "")
    braced = _BARE_FRACTION.sub(lambda part: f"\\frac{{{part[1]}}}" + (f"{{{part[2]}}}" if part[2] else ""), text)
    return braced.replace(";", ", ")


def _one_case(text: str) -> bool:
    letters = letters_of(text)
    return not any(letter.islower() and letter.upper() in letters for letter in letters)
