"""Which tokens drive the entropy down: what `clip_cov` and `kl_cov` choose tokens by.

    cov = (A - mean(A)) · (log π - mean(log π))            the means over all policy tokens of the mini-batch

The entropy falls with the covariance of log-prob and advantage: a likely token that is rewarded becomes likelier still.
A few tokens make most of it.

Paper: The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models (Cui et al. 2025,
arXiv:2505.22617).
"""

import torch

from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.masked import masked_mean, zero_outside
from burnish.errors import BurnishError


def covariance(inputs: PolicyLossInputs) -> torch.Tensor:
    """(B, R) float64, of the mini-batch that `inputs` are; 0 at tokens the policy did not sample."""
    mask = inputs.response_mask
    advantages, log_prob = inputs.advantages.double(), inputs.log_prob.detach().double()
    product = (advantages - masked_mean(advantages, mask)) * (log_prob - masked_mean(log_prob, mask))
    return zero_outside(product, mask)


def how_many(ratio: float, inputs: PolicyLossInputs) -> int:
    """The share `ratio` of the mini-batch's policy tokens, at least one."""
    return max(1, int(ratio * int(inputs.response_mask.bool().sum())))


def chosen(inputs: PolicyLossInputs, loss: str) -> torch.Tensor:
    """(B, R) bool: what the loss's `choose` picked, the rows of this micro-batch."""
    if inputs.chosen is None:
        raise BurnishError(
            f"{loss} needs its choice of tokens: call losses.token_choice({loss!r}) on the whole mini-batch "
            "and hand each micro-batch its rows as `chosen`"
        )
    return inputs.chosen
