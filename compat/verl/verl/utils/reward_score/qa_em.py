"""As Search-R1 calls `search_r1_like_qa_em`. Only the policy's own text is scored, so one answer is enough."""

from verl.utils.reward_score.search_r1_like_qa_em import compute_score as compute_score_em
from verl.utils.reward_score.search_r1_like_qa_em import (
    compute_score_subem,
    em_check,
    extract_solution,
    normalize_answer,
    subem_check,
)

__all__ = [
    "compute_score_em",
    "compute_score_subem",
    "em_check",
    "extract_solution",
    "normalize_answer",
    "subem_check",
]
