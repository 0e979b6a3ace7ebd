"""Mathematics in a box or behind "answer is": 1.0 or 0.0."""

from burnish.rewards.scores import math
from verl.utils.reward_score import number


def compute_score(model_output: str, ground_truth: str, timeout_score: float = 0) -> float:
    result = math.compute_score(model_output, ground_truth, require_box=False)
    return float(timeout_score) if result["timed_out"] else number(result)
