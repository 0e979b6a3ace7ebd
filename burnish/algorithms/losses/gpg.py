"""GPG: the plain policy gradient.

    L = -A · log π

No ratio, no clip: right as long as each batch gets one optimiser step, from the policy that sampled it.

Paper: GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning (Chu et al. 2025, arXiv:2504.02546).
Its advantages are those of `algorithm.adv_estimator=gpg`; any estimator can be used.

How we differ: the metrics have `pg_loss` and `ppo_kl`, which shows how far the policy has moved; the usual
implementation reports nothing.
"""

from burnish.algorithms.losses.reinforce import reinforce as gpg

__all__ = ["gpg"]
