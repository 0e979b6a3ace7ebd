"""CISPO: REINFORCE weighed by a clipped ratio; no token loses its gradient.

    r = exp(log π - log π_old)
    L = -stop(clip(r, 1 - low, 1 + high)) · A · log π

PPO's clip drops a token once it has moved too far. Here the clip bounds only the weight, through which no gradient
goes, and the rare tokens that start a new line of thought keep being learnt from.

Keys: `clip_ratio_low`, `clip_ratio_high`. The paper bounds the weight only from above: `clip_ratio_low=1` does that.

Paper: MiniMax-M1 (MiniMax 2025, arXiv:2506.13585).

How we differ: log π - log π_old is clamped to ±20 before the exponential. `pg_clipfrac` is the share of tokens whose
weight is clipped; there is no second clip, and `pg_clipfrac_lower` is 0.
"""

import torch

from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.tally import Metrics


def cispo(inputs: PolicyLossInputs) -> tuple[torch.Tensor, Metrics]:
    config = inputs.config
    log_ratio = inputs.log_ratio(20).detach()
    ratio = log_ratio.exp()
    weight = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)

    loss = inputs.aggregate(inputs.weigh(-weight * inputs.advantages * inputs.policy_log_prob))
    none = torch.zeros_like(inputs.response_mask)
    return inputs.report(loss, pg_clipfrac=weight != ratio, pg_clipfrac_lower=none, ppo_kl=-log_ratio)
