"""ReMax: a sample's advantage is how far it beats the greedy answer to the same prompt.

    G_t = r_t + G_{t+1}
    A_t = G_t - R(greedy answer),   on policy tokens

With one reward at the end, every token of a sample has the same advantage. Returns are G. The run rolls out the greedy
answer of each prompt once and scores it.

Paper: ReMax (Li et al. 2023, arXiv:2310.10505).

How we differ: the baseline is the greedy answer's score as it is, without the KL penalty that
`algorithm.use_kl_in_reward` takes off the rewards of the samples.
"""

import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.masked import zero_outside
from burnish.algorithms.steps import discounted_sum_to_end
from burnish.errors import BurnishError


def remax(inputs: AdvantageInputs) -> tuple[torch.Tensor, torch.Tensor]:
    if inputs.reward_baselines is None:
        raise BurnishError(
            "remax needs the scores of greedy answers, which are missing: declare Needs(greedy_baseline=True)"
        )
    mask = inputs.response_mask
    returns = zero_outside(discounted_sum_to_end(zero_outside(inputs.token_level_rewards, mask), 1.0), mask)
    return returns - inputs.on_tokens(inputs.reward_baselines), returns
