"""Rewards per token from a model that is trained along with the policy, as the loop uses it.

Consumes a scored batch with the `outcomes` (B,) of its samples, which experience finds in their scores before anything
is added to those; adds the log-probs of the model's start, and `process_rewards` (B, R), which the estimator reads. The
model learns from the outcomes of the same batch, before it rewards it or after.
"""

from collections.abc import Sequence
from typing import Any

import torch

from burnish.errors import RewardError
from burnish.protocol import DataProto


def reward_tokens(batch: DataProto, model: Any, update: str, step: int) -> tuple[DataProto, dict[str, list[float]]]:
    """The batch with its process rewards, and the metrics of the model's own update (`before` or `after`)."""
    batch = batch.union(model.compute_start_log_prob(batch))
    if update == "before":
        updates = model.update_process_reward(batch, step)
        return batch.union(model.compute_process_reward(batch)), updates
    rewarded = batch.union(model.compute_process_reward(batch))
    return rewarded, model.update_process_reward(batch, step)


def outcomes(batch: DataProto, names: Sequence[str] = ("acc",)) -> torch.Tensor:
    """(B,) how right each response is, from 0 to 1: the first of these values that a sample has, else its score."""
    scores = batch.batch["token_level_scores"].sum(-1).tolist()
    infos = batch.non_tensor_batch["reward_info"]
    given = [[info[name] for name in names if info.get(name) is not None] for info in infos]
    found = [first[0] if first else score for first, score in zip(given, scores, strict=True)]
    fits = [isinstance(value, int | float) and 0 <= value <= 1 for value in found]
    if not all(fits):
        wrong = fits.index(False)
        raise RewardError(
            f"a process reward model learns from outcomes between 0 (wrong) and 1 (right), and uid "
            f"{batch.non_tensor_batch['uid'][wrong]} (data_source {batch.non_tensor_batch['data_source'][wrong]}) has "
            f'{found[wrong]!r}; return such a number as "acc" along with the "score"'
        )
    return torch.tensor(found, dtype=torch.float32)
