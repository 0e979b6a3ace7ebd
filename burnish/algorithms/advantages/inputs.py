"""What an advantage estimator is given, and the helpers that most of them use."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from burnish.algorithms.masked import zero_outside

if TYPE_CHECKING:
    from burnish.config.algorithm import AlgorithmConfig


@dataclass(frozen=True)
class Groups:
    """Rows that answer the same prompt. Statistics come back per row, (B,), in float64.

    A mean is worked out from the distances to the group's highest value. Those of equal scores are 0, so the mean is
    exactly that score, and an estimator that subtracts it gives exactly 0.
    """

    index: torch.Tensor  # (B,) the group of each row, 0..G-1
    size: torch.Tensor  # (B,) how many rows that group has

    @classmethod
    def of(cls, uids: np.ndarray) -> "Groups":
        _, index, size = np.unique(uids, return_inverse=True, return_counts=True)
        return cls(torch.from_numpy(index), torch.from_numpy(size[index]))

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        totals = values.new_zeros(len(values), dtype=torch.float64)
        return totals.index_add(0, self.index, values.double())[self.index]

    def max(self, values: torch.Tensor) -> torch.Tensor:
        nothing = values.new_full((len(values),), -math.inf, dtype=torch.float64)
        return nothing.scatter_reduce(0, self.index, values.double(), "amax")[self.index]

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        highest = self.max(values)
        return highest + self.sum(values - highest) / self.size

    def centred(self, values: torch.Tensor) -> torch.Tensor:
        """The values less their group's mean. A group of one keeps its value, as if its mean were 0."""
        return values - self.mean(values).masked_fill(self.size == 1, 0)

    def std(self, values: torch.Tensor) -> torch.Tensor:
        """Standard deviation of a sample (n - 1); 0 in a group of one."""
        deviations = values - self.mean(values)
        return (self.sum(deviations**2) / (self.size - 1).clamp(min=1)).sqrt()


@dataclass(frozen=True)
class AdvantageInputs:
    """One batch of whole groups, as the controller sees it.

    The optional fields are there when the estimator's `Needs` ask for them, else None or empty. Every row counts as
    one sample of its group, so padding rows are added only after this stage.
    """

    token_level_rewards: torch.Tensor  # (B, R) scores, less the KL penalty where that is in the reward
    response_mask: torch.Tensor  # (B, R) 1 where the policy sampled the token
    uids: np.ndarray  # (B,) equal for samples of the same prompt
    config: "AlgorithmConfig"
    values: torch.Tensor | None = None  # (B, R) Needs(critic=True)
    reward_baselines: torch.Tensor | None = None  # (B,) Needs(greedy_baseline=True)
    reward_components: Mapping[str, torch.Tensor] = field(default_factory=dict)  # name → (B,)
    outputs: Mapping[str, torch.Tensor] = field(default_factory=dict)  # name → (B, R), as in Needs.outputs
    process_rewards: torch.Tensor | None = None  # (B, R) Needs(process_reward=True)
    old_log_probs: torch.Tensor | None = None  # (B, R)
    rollout_is_weights: torch.Tensor | None = None  # (B, R)

    @cached_property
    def scores(self) -> torch.Tensor:
        """(B,) float64: each row's reward, summed over its policy tokens."""
        return zero_outside(self.token_level_rewards, self.response_mask).double().sum(-1)

    @cached_property
    def groups(self) -> Groups:
        return Groups.of(self.uids)

    def on_tokens(self, per_row: torch.Tensor) -> torch.Tensor:
        """(B,) → (B, R): the row's number on each of its policy tokens, 0 elsewhere."""
        spread = per_row.to(self.token_level_rewards.dtype).unsqueeze(-1).expand_as(self.token_level_rewards)
        return zero_outside(spread, self.response_mask)
