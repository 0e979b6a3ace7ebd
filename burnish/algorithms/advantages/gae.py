"""GAE: how much better a token turned out than the critic expected, with λ between one step and the whole return.

    δ_t = r_t + γ V_{t+1} - V_t
    A_t = δ_t + γλ A_{t+1}             over policy tokens; after the last one, V and A are 0
    returns = A + V, the critic's target;   advantages = A, whitened over the batch's policy tokens

Paper: High-Dimensional Continuous Control Using Generalized Advantage Estimation (Schulman et al. 2016,
arXiv:1506.02438).

How we differ:
- Observation tokens (tool output, search results) are not steps: t + 1 is the next token the policy sampled, so
  neither γ nor λ is spent on them and their values and rewards are not read.
- Advantages are whitened, as is usual for language models; the paper does not.
- No loop over tokens: the recursion is summed by doubling, log2(R) passes over the batch.
"""

import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.masked import masked_whiten
from burnish.algorithms.steps import Steps
from burnish.errors import BurnishError


def gae(inputs: AdvantageInputs) -> tuple[torch.Tensor, torch.Tensor]:
    if inputs.values is None:
        raise BurnishError("gae needs the critic's values, which are missing: declare Needs(critic=True)")
    gamma, lam, steps = inputs.config.gamma, inputs.config.lam, Steps(inputs.response_mask)
    rewards, values = steps.take(inputs.token_level_rewards), steps.take(inputs.values)  # (tokens,)
    delta = rewards + gamma * steps.following(values) - values
    raw = steps.discounted_sum_to_end(delta, gamma * lam)
    return steps.put(masked_whiten(raw, torch.ones_like(raw, dtype=torch.bool))), steps.put(raw + values)
