"""Credit: from scores to advantages, on the controller.

Consumes a batch with scores and log-probs; adds `token_level_rewards` (scores, less the KL to the reference where it
is in the reward), `advantages` and `returns`. Which estimator does it is the configuration's choice; this file names
none.
"""

from typing import Any

import torch

from burnish.algorithms import advantages
from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.kl import apply_kl_penalty, kl_controller
from burnish.config.algorithm import AlgorithmConfig
from burnish.errors import BadStepError, ConfigError
from burnish.protocol import DataProto

COLUMNS = {"log_prob": "old_log_probs", "entropy": "entropys"}  # outputs of the log-prob pass that have their own name


class Credit:
    """The estimator and the KL controller of a run. The controller's state is part of the checkpoint."""

    def __init__(self, config: AlgorithmConfig):
        self.config = config
        self.needs = advantages.needs_of(config.adv_estimator)
        self.estimator = advantages.estimator(config.adv_estimator)
        self.controller = kl_controller(config.kl_ctrl)

    def __call__(self, batch: DataProto, metrics: dict[str, float]) -> DataProto:
        """Add the credit columns to the batch and what the KL did to the metrics."""
        columns = batch.batch
        rewards = columns["token_level_scores"]  # (B, R)
        if self.config.use_kl_in_reward:
            rewards, kl_metrics = apply_kl_penalty(
                rewards,
                columns["old_log_probs"],
                columns["ref_log_prob"],
                columns["response_mask"],
                self.config.kl_penalty,
                self.controller,
            )
            metrics.update(kl_metrics)
        inputs = AdvantageInputs(
            token_level_rewards=rewards,
            response_mask=columns["response_mask"],
            uids=batch.non_tensor_batch["uid"],
            config=self.config,
            values=columns["values"] if self.needs.critic else None,
            outputs={name: columns[COLUMNS.get(name, name)] for name in self.needs.outputs},
            old_log_probs=columns["old_log_probs"],
        )
        advantage, returns = self._checked(self.estimator(inputs), rewards.shape)
        credit = {"token_level_rewards": rewards, "advantages": advantage, "returns": returns}
        return batch.union(DataProto.from_dict(credit))

    def _checked(self, result: Any, shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
        """An estimator may be a user's: what it returns is checked before it reaches the loss."""
        name = f"algorithm.adv_estimator={self.config.adv_estimator}"
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise ConfigError(f"{name} returned a {type(result).__name__}; (advantages, returns) is needed")
        for what, tensor in zip(("advantages", "returns"), result, strict=True):
            found = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            if found != tuple(shape):
                raise ConfigError(f"{name} returned {found} as {what}; a tensor of {tuple(shape)} (B, R) is needed")
            if not bool(tensor.isfinite().all()):
                row = int((~tensor.isfinite()).any(-1).nonzero()[0])
                raise BadStepError(f"{name} returned {what} that are NaN or infinite, first in row {row} of the batch")
        advantage, returns = result
        return advantage, returns
