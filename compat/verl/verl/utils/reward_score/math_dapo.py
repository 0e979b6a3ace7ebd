"""DAPO's mathematics: {"score": ±1, "acc", "pred"}, and the answer that it reads."""

import re
from typing import Any

from burnish.rewards.scores import math_dapo
from burnish.rewards.scores.answers import truth_text
from verl.utils.reward_score import dapo_result
from verl.utils.reward_score.math_reward import is_equiv, last_boxed_only_string, remove_boxed, spelled

__all__ = [
    "compute_score",
    "is_correct_minerva",
    "last_boxed_only_string",
    "normalize_final_answer",
    "remove_boxed",
    "verify",
]


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


def normalize_final_answer(final_answer: str) -> str:
    """What stands behind the last `=`, in one spelling, without a unit."""
    return spelled(final_answer.rpartition("=")[2])


def is_correct_minerva(
    solution_str: str, gt: str, gt_need_extract: bool = False, answer_pattern: str = r"(?i)Answer\s*:\s*([^\n]+)"
) -> tuple[bool, str]:
    """Whether the last answer that the pattern finds is right, and that answer in one spelling."""
    stated = re.findall(answer_pattern, solution_str)
    pred = normalize_final_answer(stated[-1]) if stated else math_dapo.INVALID
    return is_equiv(pred, truth_text(gt, "math_dapo")), pred
