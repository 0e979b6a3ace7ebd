"""REINFORCE++: the discounted reward still to come, whitened over the batch. No critic, no groups.

    G_t = r_t + γ G_{t+1}                    over policy tokens
    A_t = (G_t - mean) / sqrt(var + 1e-8)    mean and variance over all policy tokens of the batch

γ is `algorithm.gamma`. Returns are G.

Paper: REINFORCE++ (Hu et al. 2025, arXiv:2501.03262).

How we differ:
- The KL penalty that the paper has in the reward is `algorithm.use_kl_in_reward`, off by default.
- Observation tokens are not steps: γ is not spent on them, and rewards that stand there do not count.
- With γ = 1, equal rewards at the end of the responses give exactly 0; with γ < 1 the distance to the end remains.
"""

import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.masked import masked_whiten
from burnish.algorithms.steps import Steps


def reinforce_plus_plus(inputs: AdvantageInputs) -> tuple[torch.Tensor, torch.Tensor]:
    steps = Steps(inputs.response_mask)
    rewards = steps.take(inputs.token_level_rewards)  # (tokens,)
    returns = steps.discounted_sum_to_end(rewards, inputs.config.gamma)
    return steps.put(masked_whiten(returns, torch.ones_like(returns, dtype=torch.bool))), steps.put(returns)
