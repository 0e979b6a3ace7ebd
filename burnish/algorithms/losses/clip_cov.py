"""Clip-Cov: PPO's clipped loss, less a few tokens that would drive the entropy down.

    r = exp(log π - log π_old)
    L = max(-A r, -A clip(r, 1 - low, 1 + high)),   0 at the chosen tokens

Candidates are the tokens inside the clip range whose covariance (`covariance.py`) lies between `clip_cov_lb` and
`clip_cov_ub`. At most a share `clip_cov_ratio` of all tokens is chosen from them, at random.

Keys: `policy_loss.clip_cov_ratio`, `policy_loss.clip_cov_lb`, `policy_loss.clip_cov_ub`; `clip_ratio_low`,
`clip_ratio_high`.

Paper: see `covariance.py`. Entropy no longer collapses, and longer training pays.

How we differ: covariance, count and draw are those of the whole mini-batch, and so the same however it is cut; the
usual implementation chooses in each micro-batch, at least one token from each. log π - log π_old is clamped to ±20
before the exponential. `pg_clipfrac` is the share of tokens that were chosen.
"""

import torch

from burnish.algorithms.losses.covariance import chosen, covariance, how_many
from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.masked import zero_outside
from burnish.algorithms.tally import Metrics


def clip_cov(inputs: PolicyLossInputs) -> tuple[torch.Tensor, Metrics]:
    left_out = chosen(inputs, "clip_cov")
    losses = torch.maximum(*inputs.clipped(inputs.log_ratio(20).exp()))
    loss = inputs.aggregate(inputs.weigh(losses.masked_fill(left_out, 0)))
    return inputs.report(loss, pg_clipfrac=left_out, ppo_kl=-inputs.log_ratio())


def choose(inputs: PolicyLossInputs, random: torch.Generator) -> torch.Tensor:
    """(B, R) bool: the tokens of a mini-batch that leave its loss."""
    config, mask = inputs.config.policy_loss, inputs.response_mask
    cov, (unclipped, clipped) = covariance(inputs), inputs.clipped(inputs.log_ratio(20).exp())
    inside = (cov > config.clip_cov_lb) & (cov < config.clip_cov_ub) & ~(clipped > unclipped)
    candidates = zero_outside(inside, mask).nonzero()  # (#, 2) row by row
    drawn = torch.randperm(len(candidates), generator=random)[: how_many(config.clip_cov_ratio, inputs)]
    rows, columns = candidates[drawn.to(candidates.device)].unbind(-1)

    left_out = torch.zeros_like(mask, dtype=torch.bool)
    left_out[rows, columns] = True
    return left_out
