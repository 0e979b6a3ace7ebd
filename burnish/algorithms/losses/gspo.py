"""GSPO: one ratio for a whole response, the geometric mean of its tokens' ratios.

    s = exp(mean_t(log π_t - log π_old,t))          the mean over the response's policy tokens
    L_t = max(-A_t s, -A_t clip(s, 1 - low, 1 + high))

s moves with the log-prob of the token it stands at, so that a token's gradient carries its own advantage. Where a
response has one advantage, that is the gradient of the paper's loss. The loss is always aggregated as
seq-mean-token-mean, whatever `actor.loss_agg_mode` says: every response weighs the same.

Keys: `clip_ratio_low`, `clip_ratio_high`. A mean over a response stays close to 1; the paper clips at 3e-4 and 4e-4,
and the default of 0.2 hardly ever does.

Paper: Group Sequence Policy Optimization (Zheng et al. 2025, arXiv:2507.18071); this is its GSPO-token.

How we differ: the mean is bounded above by 10, without gradient beyond, which keeps s finite. A response without policy
tokens adds nothing. There is no second clip for negative advantages: `pg_clipfrac_lower` is 0.
"""

import torch

from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.masked import masked_mean
from burnish.algorithms.tally import Metrics


def gspo(inputs: PolicyLossInputs) -> tuple[torch.Tensor, Metrics]:
    mask, log_ratio, log_prob = inputs.response_mask, inputs.log_ratio().detach(), inputs.policy_log_prob
    of_response = masked_mean(log_ratio, mask, dim=-1)[:, None]  # (B, 1)
    ratio = (log_prob - log_prob.detach() + of_response).clamp(max=10).exp()  # (B, R)
    unclipped, clipped = inputs.clipped(ratio)

    loss = inputs.aggregate(inputs.weigh(torch.maximum(unclipped, clipped)), "seq-mean-token-mean")
    none = torch.zeros_like(mask)
    return inputs.report(loss, pg_clipfrac=clipped > unclipped, pg_clipfrac_lower=none, ppo_kl=-log_ratio)
