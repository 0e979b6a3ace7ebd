"""DRO: policy gradient with a squared distance to the policy that sampled.

    Δ = log π - log π_old
    L = -A · log π + β/2 · Δ²

The gradient is that of ½ (A / β - Δ)² times β: a token's log-prob is drawn to a distance of A / β, and back from
further away, instead of being clipped.

Key: `policy_loss.dro_beta`, above 0.

Paper: Offline Regularised Reinforcement Learning for Large Language Models Alignment (Richemond et al. 2024,
arXiv:2405.19107).

How we differ: the paper's distance is over whole responses, to a reference policy, and its baseline is a value model
trained along; here it is per token, to the policy the step started from, and the advantage comes from the
estimator. Δ is not clamped: nothing is exponentiated, and a token far away must still be drawn back.
"""

import torch

from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.tally import Metrics
from burnish.errors import ConfigError


def dro(inputs: PolicyLossInputs) -> tuple[torch.Tensor, Metrics]:
    beta = inputs.config.policy_loss.dro_beta
    if beta <= 0:
        raise ConfigError(f"actor.policy_loss.dro_beta={beta} must be above 0: it holds the policy near the old one")
    log_ratio = inputs.log_ratio()

    loss = inputs.aggregate(inputs.weigh(beta / 2 * log_ratio**2 - inputs.advantages * inputs.policy_log_prob))
    return inputs.report(loss, ppo_kl=-log_ratio)
