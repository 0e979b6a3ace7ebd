r"""Competition mathematics: 1.0 or 0.0, and the helpers around `\boxed{}`."""

import re

from burnish.rewards.equivalence import equivalent
from burnish.rewards.equivalence.forms import Relation, Scalar, form_of
from burnish.rewards.equivalence.latex import braced, tidy
from burnish.rewards.scores import math
from burnish.rewards.scores.answers import last_box, last_boxed
from verl.utils.reward_score import number

_SLASHED = re.compile(r"^(-?\d+)/(\d+)$")
_BOXES = (("\\boxed{", "}"), ("\\fbox{", "}"), ("\\boxed ", ""))


def compute_score(solution_str: str, ground_truth: str) -> float:
    return number(math.compute_score(solution_str, ground_truth))


def last_boxed_only_string(string: str) -> str | None:
    r"""The last box with its `\boxed{` and `}`; None where there is none, or it is never closed."""
    box = last_box(string)
    if box is None or box.content is None:
        return None
    return string[max(string.rfind("\\boxed", 0, box.end), string.rfind("\\fbox", 0, box.end)) : box.end]


def remove_boxed(s: str) -> str:
    """What a box holds."""
    for opening, closing in _BOXES:
        if s.startswith(opening) and s.endswith(closing):
            return s[len(opening) : len(s) - len(closing)]
    raise AssertionError(f"remove_boxed: {s[:60]!r} is no box")  # the type that users catch


def is_equiv(str1: str | None, str2: str | None, verbose: bool = False) -> bool:
    """Whether both are the same mathematics; two Nones are."""
    if str1 is None or str2 is None:
        return str1 is str2
    return equivalent(str1, str2).equal


def strip_string(string: str) -> str:
    r"""An answer in one spelling, as `spelled`, with 1/2 and 0.5 as \frac{1}{2}."""
    text = spelled(string)
    return "\\frac{1}{2}" if text == "0.5" else _SLASHED.sub(r"\\frac{\1}{\2}", text)


def spelled(text: str) -> str:
    r"""An answer without what stands around it: `x = 5\text{ m}` is 5, `\text{East}` East, `\frac12` \frac{1}{2}."""
    form = form_of(tidy(last_boxed(text) or text))
    while isinstance(form, Relation) and form.names:
        form = form.sides[-1]
    if not isinstance(form, Scalar):
        return braced(form.text)
    core = f"0{form.core}" if form.core.startswith(".") else form.core
    return core.replace(",", "") if core.lstrip("-").replace(",", "").isdigit() else braced(core)
