"""What a loss is given: the tensors of one micro-batch, and the counts of the mini-batch it was cut from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from burnish.algorithms.aggregate import LossCounts, aggregate
from burnish.algorithms.masked import zero_outside
from burnish.algorithms.tally import Metrics, mean_over_tokens, part_of_sum

if TYPE_CHECKING:
    from burnish.config.actor import ActorConfig, CriticConfig


@dataclass(frozen=True)
class PolicyLossInputs:
    """One micro-batch of the actor's update. Only `log_prob`, `entropy` and `outputs` carry gradient."""

    old_log_prob: torch.Tensor  # (B, R) of the policy that this step started from
    log_prob: torch.Tensor  # (B, R) of the policy being updated
    advantages: torch.Tensor  # (B, R)
    response_mask: torch.Tensor  # (B, R) 1 where the policy sampled the token
    config: "ActorConfig"
    counts: LossCounts  # of the whole mini-batch, over micro-batches and devices
    max_response_length: int
    rollout_is_weights: torch.Tensor | None = None  # (B, R) importance weights, multiply the loss per token
    entropy: torch.Tensor | None = None  # (B, R) when an entropy bonus is on, or the loss declared it
    ref_log_prob: torch.Tensor | None = None  # (B, R) when a KL loss is on
    outputs: Mapping[str, torch.Tensor] = field(default_factory=dict)  # name → (B, R), as in Needs.outputs
    chosen: torch.Tensor | None = None  # (B, R) bool: what the loss's `choose` picked from the whole mini-batch

    @property
    def policy_log_prob(self) -> torch.Tensor:
        """(B, R) `log_prob` at the tokens the policy sampled, 0 elsewhere.

        Zeroed here and not only at the end: what an observation token holds must not reach the gradient as 0 · NaN.
        """
        return zero_outside(self.log_prob, self.response_mask)

    def log_ratio(self, bound: float = math.inf) -> torch.Tensor:
        """(B, R) log π - log π_old at the tokens the policy sampled, 0 elsewhere; beyond ±bound without gradient."""
        return zero_outside(self.log_prob - self.old_log_prob, self.response_mask).clamp(-bound, bound)

    def clipped(self, ratio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, R) each: -A · ratio without and with PPO's clip."""
        low, high = 1 - self.config.clip_ratio_low, 1 + self.config.clip_ratio_high
        return -self.advantages * ratio, -self.advantages * ratio.clamp(low, high)

    def weigh(self, losses: torch.Tensor) -> torch.Tensor:
        """The losses (B, R) times `rollout_is_weights`, where there are any."""
        return losses if self.rollout_is_weights is None else losses * self.rollout_is_weights

    def aggregate(self, losses: torch.Tensor, mode: str | None = None) -> torch.Tensor:
        """(B, R) → scalar, the way `actor.loss_agg_mode` says, or as `mode` for a loss that has its own."""
        length = self.config.loss_scale_factor or self.max_response_length
        return aggregate(losses, self.response_mask, mode or self.config.loss_agg_mode, self.counts, length)

    def report(self, loss: torch.Tensor, **by_token: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
        """What a loss returns: itself, and the metrics `actor/pg_loss` and `actor/<name>`, means over policy tokens."""
        means = {f"actor/{name}": mean_over_tokens(values, self.response_mask) for name, values in by_token.items()}
        return loss, {"actor/pg_loss": part_of_sum(loss), **means}


@dataclass(frozen=True)
class ValueLossInputs:
    """One micro-batch of the critic's update. Only `vpreds` carries gradient."""

    vpreds: torch.Tensor  # (B, R) of the critic being updated
    values: torch.Tensor  # (B, R) of the critic that this step started from
    returns: torch.Tensor  # (B, R) the target
    response_mask: torch.Tensor  # (B, R) 1 where the policy sampled the token
    config: "CriticConfig"
    counts: LossCounts  # of the whole mini-batch, over micro-batches and devices
    max_response_length: int

    def aggregate(self, losses: torch.Tensor) -> torch.Tensor:
        return aggregate(losses, self.response_mask, self.config.loss_agg_mode, self.counts, self.max_response_length)
