"""Short answers in `<answer>` tags: numbers, and the helpers around them."""

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.rewards.scores import qa_em
from burnish.rewards.scores.answer_tag import CLOSE, OPEN, last_answer
from burnish.rewards.scores.qa_em import normalise as normalize_answer
from verl.utils.reward_score import number

__all__ = [
    "compute_score",
    "compute_score_subem",
    "count_answer_tags",
    "em_check",
    "extract_solution",
    "normalize_answer",
    "subem_check",
]


def compute_score(
    solution_str: str,
    ground_truth: Mapping[str, Any],
    method: str = "strict",
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    return number(qa_em.compute_score(solution_str, ground_truth, format_score=format_score, score=score))


def compute_score_subem(
    solution_str: str,
    ground_truth: Mapping[str, Any],
    method: str = "strict",
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    """A right answer within the response's counts too."""
    return number(qa_em.compute_score(solution_str, ground_truth, None, "subem", format_score, score))


def extract_solution(solution_str: str) -> str | None:
    return last_answer(solution_str)


def count_answer_tags(text: str) -> tuple[int, int]:
    return text.count(OPEN), text.count(CLOSE)


def em_check(prediction: str, golden_answers: str | Sequence[str]) -> int:
    return int(qa_em.is_exact(prediction, qa_em.gold_answers(golden_answers)))


def subem_check(prediction: str, golden_answers: str | Sequence[str]) -> int:
    golds = qa_em.gold_answers(golden_answers)
    return int(qa_em.is_exact(prediction, golds) or qa_em.contains_any(prediction, golds))
