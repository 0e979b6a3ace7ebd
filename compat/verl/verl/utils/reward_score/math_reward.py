r"""Competition mathematics: 1.0 or 0.0, and the helpers around `\boxed{}`."""

from burnish.rewards.equivalence import equivalent
from burnish.rewards.scores import math
from burnish.rewards.scores.answers import last_box
from verl.utils.reward_score import number

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
