r"""DAPO's scorer for competition mathematics with short answers (AIME): +1 for a right answer, else -1.

Only the last 300 characters count. The answer is what stands behind the last "Answer:"; without one, the last \boxed{}
that ends there. `strict_box_verify=True` reads boxes only. Besides the score: `acc` (1 or 0), `pred` (the answer as
written, `[INVALID]` where there is none) and `timed_out` (see scores/math.py).

How it differs from the recorded figures of the field's scorer:
- both forms are compared as mathematics. There, a box is compared letter by letter (`\boxed{1,000}` is not 1000), and
  what stands behind "Answer:" after deletions that also strike inside words ("issued" becomes "isd");
- a box may be `\fbox{}` or `\boxed 5`, and must end in the last 300 characters, not the last 100 and begin there: a
  longer answer would be lost;
- `pred` is the answer as written (`5 degrees`, not 5), and `[INVALID]` rather than None in strict mode as well;
- an empty ground truth is an error of the row.
"""

import re
from collections.abc import Mapping
from typing import Any, TypedDict

from burnish.rewards.equivalence import DEFAULT_SECONDS, equivalent
from burnish.rewards.scores.answers import last_box, last_boxed, plain, truth_text

WINDOW = 300
INVALID = "[INVALID]"
_ANSWER = re.compile(r"\banswer\s*:[\s*]*([^\n]+)", re.IGNORECASE)


class DapoScore(TypedDict):
    score: float
    acc: float
    pred: str
    timed_out: float


def compute_score(
    solution_str: str,
    ground_truth: str | int | float,
    strict_box_verify: bool = False,
    math_time_limit: float = DEFAULT_SECONDS,
) -> DapoScore:
    """Score one response. A ground truth that is no answer is a ValueError."""
    truth = truth_text(ground_truth, "math_dapo")
    answer = extract_answer(solution_str, strict_box_verify)
    if not answer:
        return DapoScore(score=-1.0, acc=0.0, pred=INVALID, timed_out=0.0)
    verdict = equivalent(answer, truth, math_time_limit)
    return DapoScore(
        score=1.0 if verdict.equal else -1.0,
        acc=float(verdict.equal),
        pred=answer,
        timed_out=float(verdict.timed_out),
    )


def extract_answer(solution_str: str, strict_box_verify: bool = False) -> str | None:
    """The answer that the end of the response gives, as written."""
    start = max(0, len(solution_str) - WINDOW)
    if not strict_box_verify and (stated := _ANSWER.findall(solution_str, start)):
        boxed = last_boxed(stated[-1])
        return plain(stated[-1]) if boxed is None else boxed
    box = last_box(solution_str)
    return box.content if box and box.end > start else None


def reference(ground_truth: str | int | float, extra_info: Mapping[str, Any]) -> str:
    """A right response, in either mode."""
    return f"\\boxed{{{truth_text(ground_truth, 'math_dapo')}}}"


def check(ground_truth: Any, extra_info: Mapping[str, Any]) -> None:
    """ValueError where the ground truth is no answer."""
    truth_text(ground_truth, "math_dapo")
