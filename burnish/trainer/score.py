"""Scores of a batch: results in, `token_level_scores` out, failures by the policy.

Consumes a batch whose rows carry the `score_result` of their trajectory (or none yet, for a manager that scores by
itself). Samples that could not be scored are dropped and counted here, before the manager puts the others' scores on
tokens. What the reward function proposes to train on joins what the agent loop does, in the column `new_prompts`
(`augment.py` reads it). Used by training and validation.
"""

from typing import Any

import numpy as np
import torch

from burnish.config import PPOConfig
from burnish.config.reward import RewardConfig
from burnish.errors import RewardError
from burnish.protocol import DataProto, object_column
from burnish.rewards.contract import NEW_PROMPTS, proposed_by
from burnish.rewards.failures import apply_policy
from burnish.rewards.scoring import Scoring


def score(
    batch: DataProto, manager: Any, config: RewardConfig, metrics: dict[str, float], *, needs_groups: bool
) -> DataProto:
    """Add `token_level_scores` (B, R) and `reward_info` (a dict per row); rows without a score are gone afterwards."""
    if getattr(manager, "takes_results", False):
        uids = batch.non_tensor_batch["uid"]
        results = manager.score(batch)
        keep, report = apply_policy(results, uids, needs_groups, config.max_failure_ratio, config.on_error)
        batch.non_tensor_batch["score_result"] = object_column(report.results)
        batch = batch[keep]
        for name, value in report.metrics().items():
            metrics[name] = metrics.get(name, 0.0) + value
    answer = manager(batch, return_dict=True)
    scores = _checked(answer["reward_tensor"], batch.batch["response_mask"], type(manager).__name__)
    batch.batch["token_level_scores"] = scores
    info = _rows(answer.get("reward_extra_info") or {}, len(batch))
    batch.non_tensor_batch[NEW_PROMPTS] = _new_prompts(batch, [extra.pop(NEW_PROMPTS, None) for extra in info])
    batch.non_tensor_batch["reward_info"] = info
    return batch


def scores_at_once(manager: Any, config: PPOConfig) -> bool:
    """Whether the workers can score for this manager: it takes results, and its function is the configured one."""
    function = getattr(getattr(manager, "compute_score", None), "spec", None)
    return getattr(manager, "takes_results", False) and function == Scoring.spec_of(config)


def _checked(scores: Any, mask: torch.Tensor, manager: str) -> torch.Tensor:
    """A manager may be a user's: what it returns is checked before it reaches the loss."""
    if not isinstance(scores, torch.Tensor) or scores.shape != mask.shape:
        found = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise RewardError(f"{manager} returned {found} as reward_tensor; a tensor of {tuple(mask.shape)} is needed")
    scores = scores.float()
    if not bool(scores.isfinite().all()):
        row = int((~scores.isfinite()).any(-1).nonzero()[0])
        raise RewardError(f"{manager} returned a NaN or infinite reward for row {row}")
    if bool((scores[mask == 0] != 0).any()):
        row = int(((scores != 0) & (mask == 0)).any(-1).nonzero()[0])
        raise RewardError(
            f"{manager} put the reward of row {row} on a token that the policy did not sample; it belongs on the last "
            f"token with response_mask 1"
        )
    return scores


def _new_prompts(batch: DataProto, by_manager: list[Any]) -> np.ndarray:
    """Per row, what its agent loop and its reward function propose, by the two names. The function's are in the result;
    a manager that scores by itself hands them on in its extra info."""
    nothing = [None] * len(batch)
    columns = [batch.non_tensor_batch.get(name, nothing) for name in (NEW_PROMPTS, "score_result")]
    proposed = []
    for by_loop, result, extra in zip(*columns, by_manager, strict=True):
        by_reward = extra if result is None or result.new_prompts is None else result.new_prompts
        proposed.append({**(by_loop or {}), **proposed_by("reward", by_reward)})
    return object_column(proposed)


def _rows(columns: dict[str, Any], count: int) -> np.ndarray:
    """{name: B values} → B dicts."""
    for name, values in columns.items():
        if len(values) != count:
            raise RewardError(f"reward_extra_info[{name!r}] has {len(values)} values for {count} samples")
    return object_column([{name: values[i] for name, values in columns.items()} for i in range(count)])
