"""Geometry3k: numbers."""

from burnish.rewards.scores import geo3k
from verl.utils.reward_score import number


def format_reward(predict_str: str) -> float:
    return float(geo3k.is_formed(predict_str))


def acc_reward(predict_str: str, ground_truth: str, use_boxed: bool = True) -> float:
    return float(geo3k.compute_score(predict_str, ground_truth, use_boxed)["acc"])


def compute_score(predict_str: str, ground_truth: str, use_boxed: bool = True, format_score: float = 0.1) -> float:
    return number(geo3k.compute_score(predict_str, ground_truth, use_boxed, format_score))
