"""A custom policy loss: plain REINFORCE, without ratio or clip.

A loss takes one PolicyLossInputs (burnish/algorithms/losses/inputs.py) and returns a scalar and its metrics.
`inputs.aggregate` divides by the counts of the whole mini-batch and `mean_over_tokens` carries its own, so neither
depends on how the batch is cut into micro-batches.
"""

from burnish.algorithms.losses import register_policy_loss
from burnish.algorithms.tally import mean_over_tokens


@register_policy_loss("plain_reinforce")
def reinforce(inputs):
    losses = -inputs.advantages * inputs.log_prob  # (B, R)
    return inputs.aggregate(losses), {"actor/log_prob": mean_over_tokens(inputs.log_prob, inputs.response_mask)}
