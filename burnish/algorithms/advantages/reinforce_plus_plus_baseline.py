"""REINFORCE++ with a baseline: a sample against the mean of its prompt, whitened over the batch.

    a_i = R_i - mean_g
    A_i = (a_i - mean) / sqrt(var + 1e-8)    over the batch, on every policy token of sample i

R_i is the sum of the sample's rewards, mean_g over the samples of its prompt. Unlike GRPO, every group is divided by
the same spread: that of the batch. Returns are the advantages.

Paper: REINFORCE++ (Hu et al. 2025, arXiv:2501.03262), its variant with a group baseline.

How we differ:
- Mean and variance of the batch are over its policy tokens, as is usual, so a long response weighs more.
- If every group's rewards are equal, all get exactly 0. One such group among others has the batch's mean taken off.
- A group of one keeps its reward, as if its mean were 0 (the field's convention).
- Rewards on tokens the policy did not sample do not count.
"""

import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.masked import masked_whiten, zero_outside


def reinforce_plus_plus_baseline(inputs: AdvantageInputs) -> tuple[torch.Tensor, torch.Tensor]:
    centred = inputs.on_tokens(inputs.groups.centred(inputs.scores))  # (B, R)
    advantages = zero_outside(masked_whiten(centred, inputs.response_mask), inputs.response_mask)
    return advantages, advantages
