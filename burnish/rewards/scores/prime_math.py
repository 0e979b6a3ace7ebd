r"""PRIME's scorer for the NuminaMath problems (`numina_*`): a boxed or stated answer, compared as mathematics. A
decimal fraction also counts where the truth is irrational and close (docs/math-rewards.md).

How it differs from the recorded scores of the field's scorer:
- it misses equalities: 2^{10} and 1024, 6/4 and 3/2, 10^{-3} and 0.001, `5,7` and `7,5`, \log_2 8 and 3, `−7` and -7;
- `format` there is 1 for every answer it finds right at once, else for a response with "Step 2:" in it;
- `pred` is the answer as written: `x = 5` is not cut to 5, `\boxed 5` is 5, and a response without an answer has "",
  not its whole text;
- an empty ground truth is an error of the row.
"""

from typing import Any

from burnish.rewards.equivalence import DEFAULT_SECONDS
from burnish.rewards.scores.answers import judged, last_box, rule_of_truth, stated

TOLERANCE = 1e-4

reference = check = rule_of_truth("prime_math")


def compute_score(
    solution_str: str, ground_truth: str | int | float, math_time_limit: float = DEFAULT_SECONDS
) -> dict[str, Any]:
    box = last_box(solution_str)
    answer = box.content if box else stated(solution_str)
    result = judged("prime_math", answer, ground_truth, math_time_limit, TOLERANCE)
    return {**result, "format": float(bool(answer))}
