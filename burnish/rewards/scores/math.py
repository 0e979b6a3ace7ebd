r"""Competition mathematics (MATH and its copies): what the last \boxed{} holds must equal the ground truth. With
`require_box=False` a response without a box is read behind its last "answer is" or "answer:" (docs/math-rewards.md).

How it differs from the field's usual scorers, whose recorded scores it otherwise reproduces:
- they compare text after some rewriting, so `\frac64` is not `\frac32`, `3.0` not 3, `1,000` not 1000, `−7` not -7,
  `x^2+2x+1` not `(x+1)^2`, `\text{east}` not East; here each pair is equal;
- \fbox counts as a box; of several boxes the last counts, never all of them together, nor a number somewhere in the
  text; an empty ground truth is an error of the row, not an answer that `\boxed{}` gives.
"""

from typing import Any

from burnish.rewards.equivalence import DEFAULT_SECONDS
from burnish.rewards.scores.answers import judged, last_boxed, rule_of_truth, stated

reference = check = rule_of_truth("math")


def compute_score(
    solution_str: str,
    ground_truth: str | int | float,
    require_box: bool = True,
    math_time_limit: float = DEFAULT_SECONDS,
) -> dict[str, Any]:
    answer = last_boxed(solution_str)
    if answer is None and not require_box:
        answer = stated(solution_str)
    return judged("math", answer, ground_truth, math_time_limit)
