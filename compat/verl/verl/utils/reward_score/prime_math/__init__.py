"""PRIME's mathematics: (whether it is right, whether it has an answer, the answer)."""

from burnish.rewards.equivalence import DEFAULT_SECONDS, equivalent
from burnish.rewards.scores import prime_math


def compute_score(model_output: str, ground_truth: str) -> tuple[bool, bool, str]:
    result = prime_math.compute_score(str(model_output), ground_truth)
    return bool(result["acc"]), bool(result["format"]), result["pred"]


def grade_answer(given_answer: str | None, ground_truth: str) -> bool:
    """Whether the answer, without the text around it, is the ground truth."""
    return (
        given_answer is not None and equivalent(given_answer, ground_truth, DEFAULT_SECONDS, prime_math.TOLERANCE).equal
    )
