"""KL-Cov: the policy gradient with a ratio, and a penalty on the few tokens that drive the entropy down most.

    Δ = log π - log π_old
    L = -A · exp(Δ),   plus ppo_kl_coef · |Δ| at the chosen tokens

The share `kl_cov_ratio` of tokens with the largest covariance (`covariance.py`) is chosen, at least one; among equal
ones the first.

Keys: `policy_loss.kl_cov_ratio`, `policy_loss.ppo_kl_coef`.

Paper: see `covariance.py`. Nothing is clipped: the penalty alone keeps the entropy. There the weight is 1 and the share
2e-4 to 2e-3; the default weight of 0.1 is that of the usual implementation.

How we differ: the largest are those of the whole mini-batch, and so the same however it is cut; the usual
implementation chooses in each micro-batch, at least one token from each. Δ is clamped to ±20 in the exponential but not
in the penalty, which has to draw back a token from any distance. `ppo_kl` is the mean of |Δ|.
"""

import torch

from burnish.algorithms.losses.covariance import chosen, covariance, how_many
from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.tally import Metrics


def kl_cov(inputs: PolicyLossInputs) -> tuple[torch.Tensor, Metrics]:
    distance = inputs.log_ratio().abs()
    penalty = inputs.config.policy_loss.ppo_kl_coef * distance * chosen(inputs, "kl_cov")

    loss = inputs.aggregate(inputs.weigh(penalty - inputs.advantages * inputs.log_ratio(20).exp()))
    return inputs.report(loss, ppo_kl=distance)


def choose(inputs: PolicyLossInputs, random: torch.Generator) -> torch.Tensor:
    """(B, R) bool: the tokens of a mini-batch that are penalised."""
    inside = inputs.response_mask.bool()
    order = covariance(inputs)[inside].sort(descending=True, stable=True).indices  # (tokens,)
    largest = torch.zeros_like(order, dtype=torch.bool)
    largest[order[: how_many(inputs.config.policy_loss.kl_cov_ratio, inputs)]] = True
    return torch.zeros_like(inside).masked_scatter(inside, largest)
