"""The critic's loss: squared error to the returns, with the prediction kept near the one the step started from.

    L = ½ max((V - R)², (clip(V, V_old - c, V_old + c) - R)²)          c = `critic.cliprange_value`

From PPO's reference implementation (the paper does not mention the clip). Aggregated like a policy loss, so it too is
the same however the batch is cut.
"""

import torch

from burnish.algorithms.losses.inputs import ValueLossInputs
from burnish.algorithms.masked import zero_outside
from burnish.algorithms.tally import Metrics, mean_over_tokens, part_of_sum


def value_loss(inputs: ValueLossInputs) -> tuple[torch.Tensor, Metrics]:
    mask, reach = inputs.response_mask, inputs.config.cliprange_value
    predicted = zero_outside(inputs.vpreds, mask)  # before the square: see inputs.py
    near = predicted.clamp(inputs.values - reach, inputs.values + reach)
    unclipped, clipped = (predicted - inputs.returns) ** 2, (near - inputs.returns) ** 2

    loss = 0.5 * inputs.aggregate(torch.maximum(unclipped, clipped))
    return loss, {
        "critic/vf_loss": part_of_sum(loss),
        "critic/vf_clipfrac": mean_over_tokens(clipped > unclipped, mask),
        "critic/vpred_mean": mean_over_tokens(predicted, mask),
    }
