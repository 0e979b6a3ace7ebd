"""GRPO: a sample is as good as it beats the other samples of its prompt.

    A_i = (R_i - mean_g) / (std_g + ε),   on every policy token of sample i

R_i is the sum of the sample's rewards, mean and standard deviation (n - 1) are over the samples of the same prompt g.
With `algorithm.norm_adv_by_std_in_grpo=False` the division is left out: Dr.GRPO. Returns are the advantages.

Papers: DeepSeekMath (Shao et al. 2024, arXiv:2402.03300); Dr.GRPO (Liu et al. 2025, arXiv:2503.20783).

How we differ:
- The KL term of the paper is a term of the loss, switched on by `actor.use_kl_loss`; it is not part of this file.
- Equal rewards give exactly 0. Elsewhere rounding, divided by ε, can give eight rewards of 0.3 an advantage of 0.03.
- A group of one keeps its reward, as if its mean were 0 and its deviation 1 (the field's convention).
- Rewards on tokens the policy did not sample do not count.
"""

import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs


def grpo(inputs: AdvantageInputs, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, both (B, R)."""
    scores, groups = inputs.scores, inputs.groups
    alone = groups.size == 1
    advantages = torch.where(alone, scores, scores - groups.mean(scores))  # (B,)
    if inputs.config.norm_adv_by_std_in_grpo:
        advantages = advantages / (torch.where(alone, 1.0, groups.std(scores)) + epsilon)
    on_tokens = inputs.on_tokens(advantages)  # (B, R)
    return on_tokens, on_tokens
