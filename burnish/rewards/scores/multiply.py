"""Multiplication: the last `<answer>…</answer>` must be the product, alone: `score` for the right one, `format_score`
for another integer, 0 else (docs/qa-rewards.md). Digits are compared: very many cost nothing.
"""

import numbers
import re
from collections.abc import Mapping
from typing import Any

from burnish.rewards.scores.answer_tag import last_answer, tagged

_BLANKS = " \u00a0\u2009\u202f"  # the plain one, and those that typesetters use between digits
_DIGITS = rf"[0-9]+|[0-9]{{1,3}}(?:,[0-9]{{3}})+|[0-9]{{1,3}}(?:[{_BLANKS}][0-9]{{3}})+"
_INTEGER = re.compile(rf"(\*\*)?(?P<sign>[-+−]?)(?P<digits>{_DIGITS})(?:\.0*)?(?(1)\*\*\.?)")
_NOT_DIGITS = str.maketrans("", "", f",{_BLANKS}")
_EXACT_FLOATS = 2**53  # beyond, a float that was an integer may have lost digits


def compute_score(
    solution_str: str, ground_truth: str | int | float, format_score: float = 0.0, score: float = 1.0
) -> dict[str, float | str]:
    wanted = _product(ground_truth)
    given = _digits(last_answer(solution_str) or "")
    right = given == wanted
    earned = score if right else format_score if given else 0.0
    return {"score": earned, "acc": float(right), "format": float(given is not None), "pred": given or ""}


def reference(ground_truth: str | int | float, extra_info: Mapping[str, Any]) -> str:
    return tagged(_product(ground_truth))


check = reference


def _product(ground_truth: Any) -> str:
    whole = ground_truth
    if isinstance(whole, float) and whole.is_integer() and abs(whole) <= _EXACT_FLOATS:
        whole = int(whole)
    is_number = isinstance(whole, numbers.Integral) and not isinstance(whole, bool)
    digits = _digits(str(whole).strip()) if is_number or isinstance(whole, str) else None
    if digits is None:
        raise ValueError(
            f"reward_model.ground_truth={ground_truth!r:.200}: multiply needs the product, an integer as text or number"
        )
    return digits


def _digits(text: str) -> str | None:
    """Plain digits, with a minus sign where the number is below 0; None where the text is no integer."""
    found = _INTEGER.fullmatch(text)
    if not found:
        return None
    digits = found["digits"].translate(_NOT_DIGITS).lstrip("0") or "0"
    return f"-{digits}" if found["sign"] in ("-", "−") and digits != "0" else digits
