"""REINFORCE and GPG: the policy gradient, with importance weights where the samples are not the policy's own.

    L = -A · log π · w

w are the `rollout_is_weights` of the train/rollout correction (1 without one): a bounded ratio to the policy that
sampled, through which no gradient goes.

Without them there is no ratio and no clip: right as long as each batch gets one optimiser step, from the policy that
sampled it.

Papers: Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning (Williams 1992); GPG
(Chu et al. 2025, arXiv:2504.02546), whose advantages are those of `algorithm.adv_estimator=gpg`; any estimator fits.

How we differ: the baseline is the advantage estimator's. `ppo_kl` shows how far the policy has moved.
"""

import torch

from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.tally import Metrics


def reinforce(inputs: PolicyLossInputs) -> tuple[torch.Tensor, Metrics]:
    loss = inputs.aggregate(inputs.weigh(-inputs.advantages * inputs.policy_log_prob))
    return inputs.report(loss, ppo_kl=-inputs.log_ratio())
