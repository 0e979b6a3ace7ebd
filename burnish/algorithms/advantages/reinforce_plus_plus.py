"""REINFORCE++: the discounted reward to come, or a sample against the mean of its prompt, whitened over the batch.

    reinforce_plus_plus
        G_t = r_t + γ G_{t+1}                    over policy tokens; returns are G
        A_t = (G_t - mean) / sqrt(var + 1e-8)    mean and variance over all policy tokens of the batch

    reinforce_plus_plus_baseline
        a_i = R_i - mean_g
        A_i = (a_i - mean) / sqrt(var + 1e-8)    over the batch, on every policy token of sample i; returns are A

γ is `algorithm.gamma`. R_i is the sum of the sample's rewards, mean_g over the samples of its prompt. Unlike GRPO,
every group is divided by the same spread: that of the batch.

Paper: REINFORCE++ (Hu et al. 2025, arXiv:2501.03262), and its variant with a group baseline.

How we differ:
- The KL penalty that the paper has in the reward is `algorithm.use_kl_in_reward`, off by default.
- Observation tokens are not steps: γ is not spent on them, and rewards that stand there do not count.
- With γ = 1, equal rewards at the end of the responses give exactly 0; with γ < 1 the distance to the end remains.
- With the baseline, mean and variance of the batch are over its policy tokens, as is usual, so a long response weighs
  more. If every group's rewards are equal, all get exactly 0; one such group among others has the batch's mean taken
  off. A group of one keeps its reward, as if its mean were 0 (the field's convention).
"""

import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.masked import masked_whiten, zero_outside
from burnish.algorithms.steps import Steps


def reinforce_plus_plus(inputs: AdvantageInputs) -> tuple[torch.Tensor, torch.Tensor]:
    steps = Steps(inputs.response_mask)
    rewards = steps.take(inputs.token_level_rewards)  # (tokens,)
    returns = steps.discounted_sum_to_end(rewards, inputs.config.gamma)
    return steps.put(masked_whiten(returns, torch.ones_like(returns, dtype=torch.bool))), steps.put(returns)


def reinforce_plus_plus_baseline(inputs: AdvantageInputs) -> tuple[torch.Tensor, torch.Tensor]:
    centred = inputs.on_tokens(inputs.groups.centred(inputs.scores))  # (B, R)
    advantages = zero_outside(masked_whiten(centred, inputs.response_mask), inputs.response_mask)
    return advantages, advantages
