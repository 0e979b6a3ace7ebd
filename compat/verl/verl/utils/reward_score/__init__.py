"""burnish's scorers under verl's names, with verl's return types. No torch.

What counts as right is burnish's: `burnish/rewards/scores` says how each scorer differs from the field's.
"""

import inspect
from typing import Any

from burnish.errors import DataError
from burnish.loop_thread import run_to_end
from burnish.rewards import routing


def default_compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    sandbox_fusion_url: str | None = None,
    concurrent_semaphore: Any = None,
    memory_limit_mb: int | None = None,
    **kwargs: Any,
) -> float | dict[str, Any]:
    """The score of the data source's scorer: a number, and of math_dapo {"score", "acc", "pred"}. `memory_limit_mb`
    and `sandbox_fusion_url` are for programs; burnish limits by itself how many run at once."""
    try:
        scorer = routing.scorer_for(data_source)
    except DataError as error:
        raise NotImplementedError(str(error)) from None
    if scorer.runs == "sandbox":
        from verl.utils.reward_score.sandbox_fusion import limits

        kwargs["sandbox"] = limits(sandbox_fusion_url, memory_limit_mb)
    given = routing.default_compute_score(data_source, solution_str, ground_truth, extra_info, **kwargs)
    if scorer.name == "math_dapo":
        return dapo_result(given)
    return number(given)


_default_compute_score = default_compute_score  # its name until verl 0.4


def number(given: Any) -> float:
    """What a scorer of burnish gives, as the number alone."""
    if inspect.iscoroutine(given):
        given = run_to_end(given)
    return float(given["score"] if isinstance(given, dict) else given)


def dapo_result(given: dict[str, Any]) -> dict[str, Any]:
    return {"score": given["score"], "acc": bool(given["acc"]), "pred": given["pred"]}
