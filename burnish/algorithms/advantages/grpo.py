"""GRPO: a sample's advantage is how far it beats the other samples of its prompt.

    A_i = (R_i - mean_g) / (std_g + ε),   on every policy token of sample i

R_i is the sum of the sample's rewards, mean and standard deviation (n - 1) are over the samples of the same prompt g.
With `algorithm.norm_adv_by_std_in_grpo=False` the division is left out: Dr.GRPO. Returns are the advantages.

Papers: DeepSeekMath (Shao et al. 2024, arXiv:2402.03300); Dr.GRPO (Liu et al. 2025, arXiv:2503.20783).

How we differ:
- The KL term of the paper is a term of the loss, switched on by `actor.use_kl_loss`; it is not part of this file.
- Equal rewards give exactly 0. Elsewhere rounding, divided by ε, can give eight rewards of 0.3 an advantage of 0.03.
- A group of one keeps its reward, as if its mean were 0 and its deviation 1 (the field's convention).
"""

import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs, Groups


def grpo(inputs: AdvantageInputs, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    by_std = inputs.config.norm_adv_by_std_in_grpo
    advantages = inputs.on_tokens(group_normalised(inputs.scores, inputs.groups, by_std, epsilon))
    return advantages, advantages


def group_normalised(scores: torch.Tensor, groups: Groups, by_std: bool, epsilon: float) -> torch.Tensor:
    """(B,) → (B,): scores less the mean of their group, divided by its standard deviation where `by_std`."""
    centred = groups.centred(scores)
    return centred / (groups.std(scores).masked_fill(groups.size == 1, 1) + epsilon) if by_std else centred
