"""The implicit process reward: a reward for every token, from a model that only ever sees outcomes (PRIME).

    r_t = β · (log π_φ(y_t | …) - log π_φ0(y_t | …))            β = `process_reward.beta`
    L   = mean over sequences of CE(σ(Σ_t r_t), outcome)

π_φ is a language model trained on L along with the policy, π_φ0 the same model as it was at the start. The outcome is a
number in [0, 1], one per sequence. Each term of the sum says how much its token did for it.
Keys: `process_reward.*`. The estimator that reads the rewards is `advantages/prime.py`.
Cui et al., "Process Reinforcement through Implicit Rewards" (PRIME, 2025, arXiv:2502.01456).

How we differ from the usual implementation: the loss is divided by the sequences of the whole mini-batch, so it is the
same however the batch is cut; it is worked out from the logit, so a sum that is far out gives a large loss with its
gradient, never log 0; a row without policy tokens teaches nothing.
"""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.masked import masked_sum, zero_outside
from burnish.algorithms.tally import Metrics, mean_over_tokens, part_of_mean


def process_rewards(
    log_prob: torch.Tensor, ref_log_prob: torch.Tensor, mask: torch.Tensor, beta: float
) -> torch.Tensor:
    """β times the log-ratio of the model to its own start on policy tokens, 0 elsewhere; all (B, R)."""
    return beta * zero_outside(log_prob - ref_log_prob, mask)


def outcome_loss(
    rewards: torch.Tensor, outcomes: torch.Tensor, mask: torch.Tensor, counts: LossCounts
) -> tuple[torch.Tensor, Metrics]:
    """The micro-batch's share of the loss, and its metrics.

    rewards, mask: (B, R); outcomes: (B,) in [0, 1]; counts: of the whole mini-batch.
    """
    there = mask.bool().any(-1)  # (B,) rows with at least one policy token
    logits = masked_sum(rewards, mask, dim=-1)  # (B,)
    wanted = zero_outside(outcomes.to(logits.dtype), there)  # (B,)
    losses = binary_cross_entropy_with_logits(logits, wanted, reduction="none")  # (B,)
    agrees = (logits > 0) == (wanted > 0.5)
    return masked_sum(losses, there) / max(counts.sequences, 1), {
        "process_reward/accuracy": part_of_mean(masked_sum(agrees, there), there.sum()),
        "process_reward/reward_mean": mean_over_tokens(rewards, mask),
    }
