"""What is added to a policy loss: the entropy bonus and the KL to the reference.

    L = L_policy - entropy_coeff · H(π) + kl_loss_coef · KL(π, π_ref)

Each term is aggregated by `actor.loss_agg_mode`; one whose coefficient is off costs nothing.
"""

import torch

from burnish.algorithms.kl import kl_penalty
from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.tally import Metrics, part_of_mean, part_of_sum
from burnish.errors import BurnishError


def entropy_and_kl(inputs: PolicyLossInputs) -> tuple[torch.Tensor, Metrics]:
    """The micro-batch's share of what the two terms add to the loss, and their metrics."""
    config = inputs.config
    loss, metrics = inputs.log_prob.new_zeros(()), Metrics()
    if config.entropy_coeff != 0:
        if inputs.entropy is None:
            raise BurnishError("actor.entropy_coeff is not 0, but the log-prob pass returned no entropy")
        entropy = inputs.aggregate(inputs.entropy)
        metrics["actor/entropy_loss"] = part_of_sum(entropy)
        loss = loss - config.entropy_coeff * entropy
    if config.use_kl_loss:
        if inputs.ref_log_prob is None:
            raise BurnishError("actor.use_kl_loss is on, but there are no log-probs of the reference policy")
        kl = inputs.aggregate(kl_penalty(inputs.policy_log_prob, inputs.ref_log_prob, config.kl_loss_type))
        metrics |= {"actor/kl_loss": part_of_sum(kl), "actor/kl_coef": part_of_mean(config.kl_loss_coef, 1)}
        loss = loss + config.kl_loss_coef * kl
    return loss, metrics
