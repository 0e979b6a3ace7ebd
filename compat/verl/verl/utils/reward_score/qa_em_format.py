"""As Search-R1 calls the scorer of short answers that also scores the form of a response."""

from collections.abc import Mapping
from typing import Any

from burnish.rewards.scores import qa_em
from verl.utils.reward_score import number
from verl.utils.reward_score.search_r1_like_qa_em import em_check, extract_solution, normalize_answer, subem_check

__all__ = ["compute_score_em", "em_check", "extract_solution", "normalize_answer", "subem_check"]


def compute_score_em(
    solution_str: str,
    ground_truth: Mapping[str, Any],
    method: str = "strict",
    structure_format_score: float = 0.0,
    final_format_score: float = 0.0,
    retrieval_score: float = 0.0,
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    form = (structure_format_score, final_format_score, retrieval_score)
    return number(qa_em.compute_score(solution_str, ground_truth, None, "em", format_score, score, *form))
