"""GMPO: the geometric mean of a response's token ratios, each clipped on the side its advantage pushes to.

    Δ_t = log π_t - log π_old,t
    where A_t > 0:  Δ_t = min(Δ_t, high);   where A_t < 0:  Δ_t = max(Δ_t, -low);   where A_t = 0:  0
    L = -mean_t(A_t) · exp(mean_t(Δ_t)),   averaged over responses whatever `actor.loss_agg_mode` says

Keys: `clip_ratio_low`, `clip_ratio_high`. They bound the logarithm of the ratio; the paper takes 0.4 for both.

Paper: Geometric-Mean Policy Optimization (Zhao et al. 2025, arXiv:2507.20673).

How we differ:
- The average is over the responses of the mini-batch that have a policy token. The usual implementation divides by the
  rows of a micro-batch, empty ones included, so that its loss changes with the cut.
- The mean of Δ is bounded above by 30, without gradient beyond: for negative advantages nothing else holds it.
- `rollout_is_weights` enter as the geometric mean of the response's. In that a single 0, which rejects a token, would
  take out the whole response; so such a token is left out of all three means, as if the response did not have it. It
  gets no gradient, and a response of such tokens alone adds nothing.

`pg_clipfrac` is the share of tokens with Δ outside [-low, high] and A > 0, `pg_clipfrac_lower` with A < 0, whether or
not Δ is held on that side.
"""

import torch

from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.masked import masked_mean
from burnish.algorithms.tally import Metrics


def geo_mean(inputs: PolicyLossInputs) -> tuple[torch.Tensor, Metrics]:
    config, advantages, log_ratio = inputs.config, inputs.advantages, inputs.log_ratio()
    sign = advantages.sign()
    near = log_ratio.clamp(-config.clip_ratio_low, config.clip_ratio_high)
    held = sign * torch.minimum(sign * log_ratio, sign * near)  # (B, R)

    weights = torch.ones_like(advantages) if inputs.rollout_is_weights is None else inputs.rollout_is_weights
    kept = inputs.response_mask.bool() & (weights != 0)  # (B, R)
    ratio = masked_mean(held, kept, dim=-1).clamp(max=30).exp()  # (B,)
    losses = -masked_mean(advantages, kept, dim=-1) * ratio * masked_mean(weights.log(), kept, dim=-1).exp()

    outside = near != log_ratio
    loss = losses.sum() / max(inputs.counts.sequences, 1)  # a row without tokens has advantage 0
    up, down = outside & (advantages > 0), outside & (advantages < 0)
    return inputs.report(loss, pg_clipfrac=up, pg_clipfrac_lower=down, ppo_kl=-log_ratio)
