"""PRIME: the outcome of a sample and a reward for each of its tokens, both against the other samples of the prompt.

    A_t = a · (R_i - mean_{j ≠ i} R_j)  +  b · Σ_{s ≥ t} γ^{s-t} (r_s - mean_{j ≠ i} r̄_j),   over policy tokens

R_i is the sum of the sample's rewards, r_s the implicit process reward of its token s (algorithms/process_reward.py),
r̄_j the mean process reward of a token of sample j, and j runs over the other samples of the prompt. The keys are a =
`algorithm.reward_gt_coef`, b = `algorithm.reward_dpo_coef` and γ = `algorithm.gamma`. Returns are the advantages.

Paper: Process Reinforcement through Implicit Rewards (Cui et al. 2025, arXiv:2502.01456).

How we differ:
- The paper has no a and b; with both 1, as they are by default, this is its formula.
- Advantages are not whitened over the batch, which the usual implementation does and the paper does not: of a and b
  only the ratio would be left, and a group without differences would be moved off 0.
- Observation tokens are not steps: γ is not spent on them, and what stands there does not count.
- A group of one keeps its rewards: there are no others to compare it with.
- A sample without a policy token counts among the others with r̄ = 0.
"""

import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.advantages.rloo import rloo
from burnish.algorithms.masked import masked_mean
from burnish.algorithms.steps import Steps
from burnish.errors import BurnishError


def prime(inputs: AdvantageInputs) -> tuple[torch.Tensor, torch.Tensor]:
    if inputs.process_rewards is None:
        raise BurnishError("prime needs a reward for each token, which is missing: declare Needs(process_reward=True)")
    config, groups, steps = inputs.config, inputs.groups, Steps(inputs.response_mask)
    rewards = inputs.process_rewards.double()  # (B, R)
    mean = masked_mean(rewards, inputs.response_mask, dim=-1)  # (B,)
    of_others = (groups.sum(mean) - mean) / (groups.size - 1).clamp(min=1)  # (B,) 0 in a group of one
    surplus = steps.take(rewards - of_others.unsqueeze(-1))  # (tokens,)
    process = steps.put(steps.discounted_sum_to_end(surplus, config.gamma))
    outcome, _ = rloo(inputs)
    advantages = (config.reward_gt_coef * outcome + config.reward_dpo_coef * process).to(outcome.dtype)
    return advantages, advantages
