"""GPG: a sample against the mean of its prompt, made larger when much of the batch earned nothing.

    A_i = α (R_i - mean_g) / F,   α = B / max(1, number of samples with R ≠ 0),   on every policy token of sample i

R_i is the sum of the sample's rewards, mean_g over the samples of its prompt, B the number of samples; F is 1.
Returns are the advantages. The loss that belongs to it is `actor.policy_loss.loss_mode=gpg`.

Paper: GPG, Group Policy Gradient (Chu et al. 2025, arXiv:2504.02546).

How we differ:
- α counts the samples with a reward, as is usual; in the paper, those of groups whose rewards are not all equal. A
  failed sample of a mixed group raises α only here, a group that succeeds as a whole only there. With rewards of ±1,
  α is 1.
- R is the reward with its penalties, as is usual. A failed sample that has one is not 0 and does not raise α: an
  overlong answer does not, and under `algorithm.use_kl_in_reward` none does, so α is 1.
- Equal rewards give exactly 0.
- A group of one keeps its reward, as if its mean were 0 (the field's convention).
- Samples without a policy token are not counted in B, and rewards the policy did not earn count nowhere.
"""

import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs


def gpg(inputs: AdvantageInputs, f_norm: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    samples, rewarded = int(inputs.response_mask.bool().any(-1).sum()), int((inputs.scores != 0).sum())
    alpha = samples / max(1, rewarded)
    advantages = inputs.on_tokens(alpha * inputs.groups.centred(inputs.scores) / f_norm)
    return advantages, advantages
