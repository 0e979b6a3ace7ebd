"""Programs of the coding contests: (score, what happened), in burnish's sandbox."""

from typing import Any

from verl.utils.reward_score import sandbox_fusion


def compute_score(completion: str, test_cases: Any, continuous: bool = False) -> tuple[float, list[dict[str, Any]]]:
    return sandbox_fusion.compute_score(None, None, None, completion, test_cases, continuous)
