"""Arithmetic (`burnish/arithmetic`, the quickstart's task): the last `answer: <integer>` must be the ground truth.
Capitals do not matter; a number with a decimal part earns nothing. Integers are compared as digits.
"""

import re
from collections.abc import Mapping
from typing import Any

_ANSWER = re.compile(r"answer:\s*(-?)(\d++)(?![.,]?\d)", re.IGNORECASE | re.ASCII)


def compute_score(solution_str: str, ground_truth: str | int) -> dict[str, float | str]:
    wanted = str(_integer(ground_truth))
    answers = _ANSWER.findall(solution_str)
    given = ""
    if answers:
        sign, digits = answers[-1]
        given = f"{sign}{digits.lstrip('0')}" if digits.strip("0") else "0"
    right = float(given == wanted)
    return {"score": right, "acc": right, "format": float(bool(given)), "pred": given}


def reference(ground_truth: str | int, extra_info: Mapping[str, Any]) -> str:
    return f"answer: {_integer(ground_truth)}"


check = reference


def _integer(ground_truth: Any) -> int:
    try:
        if isinstance(ground_truth, bool) or (isinstance(ground_truth, float) and not ground_truth.is_integer()):
            raise ValueError
        return int(ground_truth)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"reward_model.ground_truth={ground_truth!r:.200}: arithmetic needs an integer") from None
