"""RLOO, leave one out: a sample's advantage is how far it beats the mean of the others of its prompt.

    A_i = R_i - mean_{j in g, j ≠ i} R_j = (R_i - mean_g) · n / (n - 1),   on every policy token of sample i

R_i is the sum of the sample's rewards and n the number of samples of its prompt g. Returns are the advantages.

Paper: Back to Basics (Ahmadian et al. 2024, arXiv:2402.14740).

How we differ:
- Equal rewards give exactly 0.
- A group of one keeps its reward: there are no others to compare it with. The usual vectorised form gives it 0, and
  so disagrees with its own loop form.
"""

import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs


def rloo(inputs: AdvantageInputs) -> tuple[torch.Tensor, torch.Tensor]:
    groups = inputs.groups
    others = (groups.size - 1).clamp(min=1)  # (B,)
    scale = torch.where(groups.size == 1, 1.0, groups.size.double() / others)
    advantages = inputs.on_tokens(groups.centred(inputs.scores) * scale)
    return advantages, advantages
