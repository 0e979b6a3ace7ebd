"""PPO's clipped loss, with separate lower and upper bounds and a second clip for negative advantages.

    r = exp(log π - log π_old)
    L = max(-A r, -A clip(r, 1 - low, 1 + high))
    where A < 0:  L = min(L, -A c)             the dual clip: a token far too likely now costs at most c times |A|

Keys: `clip_ratio_low`, `clip_ratio_high` (both `clip_ratio` unless set; DAPO's clip-higher is a larger high) and
`clip_ratio_c`, which must be above 1.

Papers: PPO (Schulman et al. 2017, arXiv:1707.06347); dual clip (Ye et al. 2020, arXiv:1912.09729); clip-higher
(DAPO, Yu et al. 2025, arXiv:2503.14476).

How we differ: log π - log π_old is clamped to ±20 before the exponential, which keeps r finite and stops the
gradient beyond; `rollout_is_weights` multiply the loss of each token after clipping.
"""

import torch

from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.tally import Metrics
from burnish.errors import ConfigError


def vanilla(inputs: PolicyLossInputs) -> tuple[torch.Tensor, Metrics]:
    config = inputs.config
    if config.clip_ratio_c <= 1:
        raise ConfigError(f"actor.clip_ratio_c={config.clip_ratio_c} must be above 1: it bounds the ratio from above")

    log_ratio, advantages = inputs.log_ratio(20), inputs.advantages
    unclipped, clipped = inputs.clipped(log_ratio.exp())
    losses = torch.maximum(unclipped, clipped)
    bound = -advantages * config.clip_ratio_c
    negative = advantages < 0
    bounded = torch.where(negative, torch.minimum(losses, bound), losses)

    loss, lower = inputs.aggregate(inputs.weigh(bounded)), negative & (losses > bound)
    return inputs.report(loss, pg_clipfrac=clipped > unclipped, pg_clipfrac_lower=lower, ppo_kl=-log_ratio)
