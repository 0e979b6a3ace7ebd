"""OPO: a sample against the mean of its prompt in which long responses count more.

    b_g = Σ_{j in g} l_j R_j / Σ_{j in g} l_j
    A_i = R_i - b_g,   on every policy token of sample i

R_i is the sum of the sample's rewards and l_i the number of its policy tokens. If the squared gradient of a response
is proportional to its length, no other baseline has less variance. Returns are the advantages.

Paper: On-Policy RL with Optimal Reward Baseline (Hao et al. 2025, arXiv:2505.23585), with one update per batch.

How we differ:
- Equal rewards give exactly 0: the plain mean of the group is taken off before lengths are brought in.
- A group of one keeps its reward, as if its baseline were 0 (the field's convention).
- Observation tokens do not count as length.
"""

import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs


def opo(inputs: AdvantageInputs) -> tuple[torch.Tensor, torch.Tensor]:
    groups = inputs.groups
    lengths = inputs.response_mask.bool().sum(-1)  # (B,)
    centred = groups.centred(inputs.scores)
    baseline = groups.sum(lengths * centred) / groups.sum(lengths).clamp(min=1)
    advantages = inputs.on_tokens(centred - baseline.masked_fill(groups.size == 1, 0))
    return advantages, advantages
