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
- Both results are 0 outside the mask.
- No loop over tokens: the recursion is summed by doubling, log2(R) passes over the batch.
"""

import torch
import torch.nn.functional as F

from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.masked import close_up, discounted_sum_to_end, masked_whiten, spread_out, zero_outside
from burnish.errors import BurnishError


def gae(inputs: AdvantageInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, both (B, R)."""
    if inputs.values is None:
        raise BurnishError("gae reads the critic's values, and there are none: declare Needs(critic=True)")
    gamma, lam, mask = inputs.config.gamma, inputs.config.lam, inputs.response_mask.bool()
    values = zero_outside(inputs.values, mask)
    here = close_up(values, mask)  # (B, R) V_t, one policy token after the other
    following = F.pad(here[:, 1:], (0, 1))  # V_{t+1}, 0 after the last step
    delta = close_up(inputs.token_level_rewards, mask) + gamma * following - here
    raw = spread_out(discounted_sum_to_end(delta, gamma * lam), mask)
    return zero_outside(masked_whiten(raw, mask), mask), zero_outside(raw + values, mask)
