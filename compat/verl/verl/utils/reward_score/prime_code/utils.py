"""Programs of the coding contests, test by test."""

from typing import Any

from verl.utils.reward_score.sandbox_fusion import utils


def check_correctness(
    in_outs: dict[str, Any], generation: str, timeout: float = 10, debug: bool = True
) -> tuple[list[bool], list[dict[str, Any]]]:
    """For each test whether it is passed, and what happened."""
    return utils.check_correctness(None, in_outs, generation, timeout)
