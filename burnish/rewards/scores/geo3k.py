r"""Geometry3k: (1 - format_score) · acc + format_score · format.

`acc` is 1 where the last \boxed{} (with `use_boxed=False` the whole response) is the same mathematics as the ground
truth; `format` is 1 where the response opens with <think>…</think> and has a \boxed{…} behind it. `format_score` is
0.1. `pred` is the answer, `timed_out` as in scores/math.py.

How it differs from the recorded figures of the field's scorer: that one misses equalities (2^{10} and 1024, 6/4 and
3/2, `5,7` and `7,5`, \log_2 8 and 3, `−7` and -7, `xyz = 5` and 5) and boxes (`\boxed 5`, \fbox{9}); here an empty
ground truth is an error of the row.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

from burnish.rewards.equivalence import DEFAULT_SECONDS, equivalent
from burnish.rewards.scores.answers import last_boxed, truth_text


class GeoScore(TypedDict):
    score: float
    acc: float
    format: float
    pred: str
    timed_out: float


def compute_score(
    solution_str: str,
    ground_truth: str | int | float,
    use_boxed: bool = True,
    format_score: float = 0.1,
    math_time_limit: float = DEFAULT_SECONDS,
) -> GeoScore:
    """Score one response. A ground truth that is no answer is a ValueError."""
    truth = truth_text(ground_truth, "geo3k")
    answer = last_boxed(solution_str) if use_boxed else solution_str.strip()
    timed_out = acc = 0.0
    if answer:
        verdict = equivalent(answer, truth, math_time_limit)
        acc, timed_out = float(verdict.equal), float(verdict.timed_out)
    formed = float(is_formed(solution_str))
    score = (1.0 - format_score) * acc + format_score * formed
    return GeoScore(score=score, acc=acc, format=formed, pred=(answer or "")[:200], timed_out=timed_out)


def is_formed(response: str) -> bool:
    """Whether it opens with <think>…</think> and has a \\boxed{…} behind that."""
    thought = response.find("</think>") if response.startswith("<think>") else -1
    box = response.find("\\boxed{", thought) if thought >= 0 else -1
    return box >= 0 and response.find("}", box) >= 0


def reference(ground_truth: str | int | float, extra_info: Mapping[str, Any]) -> str:
    """A right response."""
    return f"<think>\n</think>\n\\boxed{{{truth_text(ground_truth, 'geo3k')}}}"


def check(ground_truth: Any, extra_info: Mapping[str, Any]) -> None:
    """ValueError where the ground truth is no answer."""
    truth_text(ground_truth, "geo3k")
