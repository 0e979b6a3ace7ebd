"""GSM8K: numbers, and the answer as text."""

from burnish.rewards.scores.gsm8k import compute_score, extract_solution

__all__ = ["compute_score", "extract_solution"]
