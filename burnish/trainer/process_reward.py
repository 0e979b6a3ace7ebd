"""Rewards per token from a model that is trained along with the policy, as the loop uses it.

Consumes a scored batch; adds `outcomes` (B,), the log-probs of the model's start, and `process_rewards` (B, R), which
the estimator reads. The model learns from the outcomes of the same batch, before it rewards it or after.
"""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch

from burnish.errors import RewardError
from burnish.protocol import DataProto


def reward_tokens(batch: DataProto, model: Any, update: str, step: int) -> tuple[DataProto, dict[str, list[float]]]:
    """The batch with its process rewards, and the metrics of the model's own update (`before` or `after`)."""
    batch = batch.union(DataProto.from_dict({"outcomes": outcomes(batch)}))
    batch = batch.union(model.compute_start_log_prob(batch))
    if update == "before":
        updates = model.update_process_reward(batch, step)
        return batch.union(model.compute_process_reward(batch)), updates
    rewarded = batch.union(model.compute_process_reward(batch))
    return rewarded, model.update_process_reward(batch, step)


def outcomes(batch: DataProto) -> torch.Tensor:
    """(B,) how right each response is, from 0 to 1: the reward function's `acc` where it gives one, else the score."""
    scores = batch.batch["token_level_scores"].sum(-1).tolist()
    infos = batch.non_tensor_batch["reward_info"]
    found = [_outcome(info, score) for info, score in zip(infos, scores, strict=True)]
    wrong = next((i for i, value in enumerate(found) if not 0 <= value <= 1), None)
    if wrong is not None:
        raise RewardError(
            f"a process reward model learns from outcomes between 0 (wrong) and 1 (right), and uid "
            f"{batch.non_tensor_batch['uid'][wrong]} (data_source {batch.non_tensor_batch['data_source'][wrong]}) has "
            f'{found[wrong]:g}; return such a number as "acc" beside the "score"'
        )
    return torch.tensor(found)


def _outcome(info: Mapping[str, Any], score: float) -> float:
    accuracy = info.get("acc")
    return float(accuracy) if isinstance(accuracy, Real | np.bool_) else score
