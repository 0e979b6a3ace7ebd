"""GDPO: each part of a reward is compared within the group separately, so that a wide one does not drown the others.

    a_i = Σ_k w_k (R_ik - mean_gk) / (std_gk + ε)      for the parts k = `algorithm.gdpo_reward_keys`
    A_i = (a_i - mean) / sqrt(var + 1e-8)              over the batch, on every policy token of sample i

The parts are numbers that the reward function returns next to the score, or several functions with a weight each; the
weights w are `algorithm.gdpo_reward_weights`, 1 each by default. Without keys there is one part, the score. With
`algorithm.norm_adv_by_std_in_grpo=False` the first division is left out. Returns are the advantages.

Paper: GDPO, Group reward-Decoupled Normalization Policy Optimization (Liu et al. 2026, arXiv:2601.05242).

How we differ:
- Mean and variance of the batch are over its policy tokens, as is usual, so a long response weighs more than a short
  one. In the paper each sample counts once.
- Parts that are equal throughout their groups add exactly 0; the batch's mean is taken off all the same.
- A group of one keeps its parts, as in GRPO.
- Only the score has the KL penalty of `algorithm.use_kl_in_reward` in it; the parts do not.
"""

import torch

from burnish.algorithms.advantages.grpo import group_normalised
from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.masked import masked_whiten, zero_outside
from burnish.errors import BurnishError


def gdpo(inputs: AdvantageInputs, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    by_std, mask = inputs.config.norm_adv_by_std_in_grpo, inputs.response_mask
    normalised = [weight * group_normalised(part, inputs.groups, by_std, epsilon) for part, weight in _parts(inputs)]
    combined = inputs.on_tokens(torch.stack(normalised).sum(0))  # (K, B) → (B, R)
    advantages = zero_outside(masked_whiten(combined, mask), mask)
    return advantages, advantages


def _parts(inputs: AdvantageInputs) -> list[tuple[torch.Tensor, float]]:
    """What is compared, each (B,), and its weight: the parts in the order of their keys, or the score alone."""
    keys, weights = inputs.config.gdpo_reward_keys or [], inputs.config.gdpo_reward_weights
    if not keys:
        return [(inputs.scores, 1.0)]
    if missing := [key for key in keys if key not in inputs.reward_components]:
        raise BurnishError(
            f"gdpo reads the reward's parts {', '.join(keys)}, and {', '.join(missing)} is missing: declare "
            "Needs(reward_components=True), and return it from the reward function"
        )
    return [(inputs.reward_components[key], w) for key, w in zip(keys, weights or [1.0] * len(keys), strict=True)]
