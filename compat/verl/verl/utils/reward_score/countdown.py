"""Countdown, as in the forks of verl that have it: a number."""

from typing import Any

from burnish.rewards.scores import countdown
from verl.utils.reward_score import number


def compute_score(
    solution_str: str, ground_truth: Any, method: str = "strict", format_score: float = 0.1, score: float = 1.0
) -> float:
    return number(countdown.compute_score(solution_str, ground_truth, format_score, score))
