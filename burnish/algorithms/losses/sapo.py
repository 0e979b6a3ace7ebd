"""SAPO: a smooth gate instead of a clip; the further a token has moved, the less it still pushes.

    r = exp(log π - log π_old)
    L = -A · σ(τ (r - 1)) · 4 / τ           τ = tau_pos where A > 0, else tau_neg

At r = 1 the gradient is PPO's, and it fades on both sides. A larger τ fades faster; negative advantages, which raise
every other token of the vocabulary, get the larger one. The loss is always aggregated as seq-mean-token-mean, whatever
`actor.loss_agg_mode` says.

Keys: `policy_loss.tau_pos`, `policy_loss.tau_neg`.

Paper: Soft Adaptive Policy Optimization (Gao et al. 2025, arXiv:2511.20347).

How we differ: log π - log π_old is clamped to ±20 before the exponential. Both clip fractions are 0.
"""

import torch

from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.tally import Metrics


def sapo(inputs: PolicyLossInputs) -> tuple[torch.Tensor, Metrics]:
    config, advantages = inputs.config.policy_loss, inputs.advantages
    log_ratio = inputs.log_ratio(20)
    tau = torch.full_like(advantages, config.tau_neg).masked_fill(advantages > 0, config.tau_pos)  # (B, R)
    gate = torch.sigmoid(tau * (log_ratio.exp() - 1)) * 4 / tau

    loss = inputs.aggregate(inputs.weigh(-advantages * gate), "seq-mean-token-mean")
    none = torch.zeros_like(inputs.response_mask)
    return inputs.report(loss, pg_clipfrac=none, pg_clipfrac_lower=none, ppo_kl=-log_ratio)
