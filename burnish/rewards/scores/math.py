r"""Competition mathematics (MATH and its copies): what the last \boxed{} holds must equal the ground truth.

Equal means the same mathematics (burnish/rewards/equivalence): `\frac12`, 0.5 and 1/2; `x=5` and 5; `2,3` and `3,2`.
The score is 1 or 0; `acc` is the same, `pred` the content of the box, `timed_out` 1 where the comparison took longer
than `math_time_limit` seconds of processor time, which counts as not equal, `unreadable_truth` 1 where the ground truth
could not be read as mathematics. With `require_box=False` a response without a box is read
behind its last "answer is" or "answer:".

How it differs from the field's usual scorers, whose recorded scores it otherwise reproduces:
- they compare text after some rewriting, so `\frac64` is not `\frac32`, `3.0` not 3, `1,000` not 1000, `−7` not -7,
  `x^2+2x+1` not `(x+1)^2`, `\text{east}` not East; here each pair is equal;
- \fbox counts as a box;
- of several boxes the last counts, never all of them together, nor a number somewhere in the text;
- an empty ground truth is an error of the row, not an answer that `\boxed{}` gives.
"""

from burnish.rewards.equivalence import DEFAULT_SECONDS
from burnish.rewards.scores.answers import Judged, judged, last_boxed, rules_of_truth, stated

reference, check = rules_of_truth("math")


def compute_score(
    solution_str: str,
    ground_truth: str | int | float,
    require_box: bool = True,
    math_time_limit: float = DEFAULT_SECONDS,
) -> Judged:
    """Score one response. A ground truth that is no answer is a ValueError: the row is wrong, not the response."""
    answer = last_boxed(solution_str)
    if answer is None and not require_box:
        answer = stated(solution_str)
    return judged("math", answer, ground_truth, math_time_limit)
