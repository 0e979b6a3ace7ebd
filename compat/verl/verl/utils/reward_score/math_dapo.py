"""DAPO's mathematics: {"score": ±1, "acc", "pred"}, and the answer that it reads."""

from typing import Any

from burnish.rewards.scores import math_dapo
from verl.utils.reward_score import dapo_result
from verl.utils.reward_score.math_reward import last_boxed_only_string, remove_boxed

__all__ = ["compute_score", "last_boxed_only_string", "remove_boxed", "verify"]


def compute_score(
    solution_str: str, ground_truth: str, strict_box_verify: bool = False, pause_tokens_index: Any = None
) -> dict[str, Any]:
    return dapo_result(math_dapo.compute_score(solution_str, ground_truth, strict_box_verify))


def verify(
    solution_str: str, answer: str, strict_box_verify: bool = False, pause_tokens_index: Any = None
) -> tuple[bool, str]:
    """Whether it is right, and the answer as written."""
    result = compute_score(solution_str, answer, strict_box_verify)
    return result["acc"], result["pred"]
