"""The optimal token baselines: at each position, the baseline that minimises the variance of the gradient.

    G_t = Σ_{s ≥ t} r_s                                 reward to go, over policy tokens
    w_t = (1 - 2 π(y_t) + Σ_v π_v²) ρ_t²                a token's squared gradient at the logits, see variance.py
    W_t = Σ_{s ≤ t} w_s                                 the sample's gradient up to t
    B_t = Σ_j G_{j,t} W_{j,t} / Σ_j W_{j,t}             over the samples j of the prompt that have a policy token at t
    A_t = G_t - B_t,    returns = G

A sample whose gradient is large counts for more: its reward is what the baseline must cancel. ρ are the rollout
correction's weights where it gives any, else 1.

    optimal_token_baseline        position t is the column of the response
    tir_optimal_token_baseline    position t counts the policy's tokens: for tool-integrated reasoning

Tool output stands between the turns of a response, and is longer in one sample than in another. By column, the answer
of one sample would be compared with the first query of another, or with nothing where the others have tool output.
Without tool output the two are the same.

Paper: The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL (Li et al. 2026, arXiv:2602.07078).

How we differ:
- A position that only one sample of the group reaches has nothing to be compared with. By default it keeps its return,
  as a group of one does (`handle_zero_tail`); its own return as baseline would give 0 whatever it earned, and the end
  of the longest response would never be learned from. The usual implementation looks for such positions by counting
  policy tokens and takes the count for a column, which holes in the mask shift; we ask each position.
- Equal returns that are compared give exactly 0: weighted are the distances to the highest one, in float64 and without
  an ε.
- Where every sample's W is 0 (all tokens so far were certain) the baseline is the plain mean.
"""

import math

import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.masked import zero_outside
from burnish.algorithms.variance import logit_gradient_power
from burnish.errors import BurnishError


def optimal_token_baseline(inputs: AdvantageInputs, handle_zero_tail: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    columns = torch.arange(inputs.response_mask.shape[-1], device=inputs.response_mask.device)
    return _against_group(inputs, columns.expand_as(inputs.response_mask), handle_zero_tail)


def tir_optimal_token_baseline(
    inputs: AdvantageInputs, handle_zero_tail: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    written = inputs.response_mask.bool().cumsum(-1) - 1  # (B, R) which of the sample's own tokens this is
    return _against_group(inputs, written, handle_zero_tail)


def _against_group(
    inputs: AdvantageInputs, position: torch.Tensor, handle_zero_tail: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns where a token is compared with those of its group at the same `position` (B, R)."""
    mask, rewards = inputs.response_mask.bool(), inputs.token_level_rewards
    returns = zero_outside(rewards, mask).double().flip(-1).cumsum(-1).flip(-1)  # G (B, R)
    group = inputs.groups.index.unsqueeze(-1)  # (B, 1)
    place = (group * mask.shape[-1] + position)[mask]  # (tokens,) one number for each group and position

    def sum_at_place(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(mask.numel()).index_add(0, place, values)[place]  # (tokens,)

    earned, weight = returns[mask], _gradient_so_far(inputs)[mask]  # (tokens,)
    highest = earned.new_full((mask.numel(),), -math.inf).scatter_reduce(0, place, earned, "amax")[place]
    compared, total = sum_at_place(torch.ones_like(earned)), sum_at_place(weight)
    weight, total = torch.where(total > 0, weight, 1), torch.where(total > 0, total, compared)
    below = earned - highest
    advantages = below - sum_at_place(below * weight) / total

    alone = (inputs.groups.size == 1).unsqueeze(-1).expand_as(mask)[mask]
    if handle_zero_tail:
        alone = alone | (compared == 1)
    advantages = torch.where(alone, earned, advantages).to(rewards.dtype)
    return torch.zeros_like(rewards).masked_scatter(mask, advantages), zero_outside(returns, mask).to(rewards.dtype)


def _gradient_so_far(inputs: AdvantageInputs) -> torch.Tensor:
    """W (B, R)."""
    sum_pi_squared = inputs.outputs.get("sum_pi_squared")
    if sum_pi_squared is None:
        raise BurnishError(
            "the optimal token baselines need sum_pi_squared of the log-prob pass, which is missing: "
            'declare Needs(groups=True, outputs=("sum_pi_squared",))'
        )
    if inputs.old_log_probs is None:
        raise BurnishError(
            "the optimal token baselines need old_log_probs, which are missing: "
            'Needs(groups=True, outputs=("sum_pi_squared",)) makes the log-prob pass return both'
        )
    mask, weights = inputs.response_mask, inputs.rollout_is_weights
    return logit_gradient_power(inputs.old_log_probs, sum_pi_squared, mask, weights).cumsum(-1)
