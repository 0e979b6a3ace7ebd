"""Arithmetic (`burnish/arithmetic`, the quickstart's task): the last `answer: <integer>` must be the ground truth.

Capitals do not matter. A number with a decimal part is not an integer and earns nothing. Besides the score (1 or 0) the
result holds `acc` (the same), `format` (1 where an answer was given in this form) and `pred` (the integer as text).
Integers are compared as digits, so that one with very many costs nothing.
"""

import re
from collections.abc import Mapping
from typing import Any, TypedDict

_ANSWER = re.compile(r"answer:\s*(-?)(\d++)(?![.,]?\d)", re.IGNORECASE | re.ASCII)


class ArithmeticScore(TypedDict):
    score: float
    acc: float
    format: float
    pred: str


def compute_score(solution_str: str, ground_truth: str | int) -> ArithmeticScore:
    """Score one response. A ground truth that is not an integer is a ValueError: the row is wrong, not the response."""
    wanted = str(_integer(ground_truth))
    answers = _ANSWER.findall(solution_str)
    given = ""
    if answers:
        sign, digits = answers[-1]
        given = f"{sign}{digits.lstrip('0')}" if digits.strip("0") else "0"
    right = float(given == wanted)
    return ArithmeticScore(score=right, acc=right, format=float(bool(given)), pred=given)


def reference(ground_truth: str | int, extra_info: Mapping[str, Any]) -> str:
    """A right response."""
    return f"answer: {_integer(ground_truth)}"


def check(ground_truth: str | int, extra_info: Mapping[str, Any]) -> None:
    """ValueError where the ground truth is no integer."""
    _integer(ground_truth)


def _integer(ground_truth: Any) -> int:
    try:
        if isinstance(ground_truth, bool) or (isinstance(ground_truth, float) and not ground_truth.is_integer()):
            raise ValueError
        return int(ground_truth)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"reward_model.ground_truth={ground_truth!r:.200}: arithmetic needs an integer") from None
