r"""DAPO's scorer for competition mathematics with short answers (AIME): +1 for a right answer, else -1. Only the last
300 characters count. `strict_box_verify=True` reads boxes only (docs/math-rewards.md).

How it differs from the recorded scores of the field's scorer:
- both forms are compared as mathematics. There, a box is compared letter by letter (`\boxed{1,000}` is not 1000), and
  what follows "Answer:" after deletions that also strike inside words ("issued" becomes "isd");
- a box may be `\fbox{}` or `\boxed 5`, and must end in the last 300 characters, not the last 100 and begin there: a
  longer answer would be lost;
- `pred` is the answer as written (`5 degrees`, not 5), and `[INVALID]` rather than None in strict mode as well;
- an empty ground truth is an error of the row.
"""

import re
from typing import Any

from burnish.rewards.equivalence import DEFAULT_SECONDS
from burnish.rewards.scores.answers import judged, last_box, rule_of_truth, stated

WINDOW = 300
INVALID = "[INVALID]"
_ANSWER = re.compile(r"\banswer[*_\s]*+:[*_\s]*+(?=\S)", re.IGNORECASE)

reference = check = rule_of_truth("math_dapo")


def compute_score(
    solution_str: str,
    ground_truth: str | int | float,
    strict_box_verify: bool = False,
    math_time_limit: float = DEFAULT_SECONDS,
) -> dict[str, Any]:
    answer = extract_answer(solution_str, strict_box_verify)
    result = judged("math_dapo", answer, ground_truth, math_time_limit, wrong=-1.0)
    return {**result, "pred": answer or INVALID}


def extract_answer(solution_str: str, strict_box_verify: bool = False) -> str | None:
    """The answer that the end of the response gives, as written."""
    start = max(0, len(solution_str) - WINDOW)
    if not strict_box_verify and (answer := stated(solution_str, _ANSWER, start)) is not None:
        return answer
    box = last_box(solution_str)
    return box.content if box and box.end > start else None
