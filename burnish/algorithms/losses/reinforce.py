"""REINFORCE: the policy gradient, with importance weights where the samples are not the policy's own.

    L = -A · log π · w

w are the `rollout_is_weights` of the train/rollout correction (1 without one): a bounded ratio to the policy that
sampled, through which no gradient goes.

Paper: Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning (Williams 1992).

How we differ: the baseline is the advantage estimator's.
"""

import torch

from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.tally import Metrics


def reinforce(inputs: PolicyLossInputs) -> tuple[torch.Tensor, Metrics]:
    loss = inputs.aggregate(inputs.weigh(-inputs.advantages * inputs.policy_log_prob))
    return inputs.report(loss, ppo_kl=-inputs.log_ratio())
