r"""Geometry3k: (1 - format_score) · acc + format_score · format (docs/math-rewards.md).

How it differs from the recorded scores of the field's scorer: that one misses equalities (2^{10} and 1024, 6/4 and
3/2, `5,7` and `7,5`, \log_2 8 and 3, `−7` and -7, `xyz = 5` and 5) and boxes (`\boxed 5`, \fbox{9}); here an empty
ground truth is an error of the row.
"""

from typing import Any

from burnish.rewards.equivalence import DEFAULT_SECONDS
from burnish.rewards.scores.answers import judged, last_boxed, rule_of_truth

reference = check = rule_of_truth("geo3k", before="<think>\n</think>\n")


def compute_score(
    solution_str: str,
    ground_truth: str | int | float,
    use_boxed: bool = True,
    format_score: float = 0.1,
    math_time_limit: float = DEFAULT_SECONDS,
) -> dict[str, Any]:
    answer = last_boxed(solution_str) if use_boxed else solution_str.strip()
    result = judged("geo3k", answer, ground_truth, math_time_limit)
    formed = float(is_formed(solution_str))
    score = (1.0 - format_score) * result["acc"] + format_score * formed
    return {**result, "score": score, "pred": result["pred"][:200], "format": formed}


def is_formed(response: str) -> bool:
    """Whether it opens with <think>…</think> and has a \\boxed{…} behind that."""
    thought = response.find("</think>") if response.startswith("<think>") else -1
    box = response.find("\\boxed{", thought) if thought >= 0 else -1
    return box >= 0 and response.find("}", box) >= 0
