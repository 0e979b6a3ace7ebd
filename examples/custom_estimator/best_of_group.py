"""A custom advantage estimator: only samples that beat the middle of their group are trained on.

An estimator takes one AdvantageInputs (burnish/algorithms/advantages/inputs.py) and returns advantages and returns,
both (B, R). `needs` says what the run must provide: here several samples per prompt.
"""

import torch

from burnish.algorithms.advantages import Needs, register_adv_est


@register_adv_est("best_of_group", needs=Needs(groups=True))
def best_of_group(inputs):
    above = inputs.scores - inputs.groups.mean(inputs.scores)  # (B,)
    advantages = inputs.on_tokens(torch.clamp(above, min=0))  # (B, R)
    return advantages, advantages
