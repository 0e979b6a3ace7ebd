"""DPPO: a token is removed from the loss once its probability (not its ratio) has moved too far.

    r = exp(log π - log π_old)
    L = -A · stop(min(r, c)) · log π         where the token is inside the trust region, 0 elsewhere

    dppo_tv:  where A > 0:  π - π_old ≤ high;                     elsewhere:  π - π_old ≥ -low
    dppo_kl:  where A > 0:  π ≤ π_old or KL(π_old, π) ≤ high;     elsewhere:  π ≥ π_old or KL(π_old, π) ≤ low

The KL is that of two outcomes, this token or any other: π_old log(π_old / π) + (1 - π_old) log((1 - π_old) / (1 - π)).
A token on the near side of π_old is always trusted: the update brings it back.
A ratio says much about a rare token that hardly changed the distribution and little about a likely one that did.

Keys: `clip_ratio_low`, `clip_ratio_high` are the bounds of the divergence, `clip_ratio_c` of the weight.

Paper: Rethinking the Trust Region in LLM Reinforcement Learning (Qi et al. 2026, arXiv:2602.04879); these are its
binary approximations.

How we differ: log π - log π_old is clamped to ±20 before the exponential. `pg_clipfrac` is the share of tokens outside
the trust region, `pg_clipfrac_lower` of those inside whose weight is capped by c.
"""

import torch

from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.tally import Metrics

EPSILON = 1e-8  # inside the logarithms of the KL


def dppo_tv(inputs: PolicyLossInputs) -> tuple[torch.Tensor, Metrics]:
    """Distance in probability."""
    config, (new, old) = inputs.config, [log_p.exp() for log_p in _log_probs(inputs)]
    trusted = torch.where(
        inputs.advantages > 0, new - old <= config.clip_ratio_high, new - old >= -config.clip_ratio_low
    )
    return _inside(inputs, trusted)


def dppo_kl(inputs: PolicyLossInputs) -> tuple[torch.Tensor, Metrics]:
    """Distance as a KL divergence of two outcomes."""
    config, (new, old) = inputs.config, _log_probs(inputs)
    kl = _term(old.exp(), new.exp()) + _term(-old.expm1(), -new.expm1())  # 1 - p has no digits left near p = 1
    trusted = torch.where(
        inputs.advantages > 0,
        (new <= old) | (kl <= config.clip_ratio_high),
        (new >= old) | (kl <= config.clip_ratio_low),
    )
    return _inside(inputs, trusted)


def _log_probs(inputs: PolicyLossInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, R) of the sampled tokens, now and before; one that rounding left above 0 counts as 0."""
    return inputs.log_prob.detach().clamp(max=0), inputs.old_log_prob.clamp(max=0)


def _term(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return p * ((p + EPSILON) / (q + EPSILON)).log()


def _inside(inputs: PolicyLossInputs, trusted: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
    cap, log_ratio = inputs.config.clip_ratio_c, inputs.log_ratio(20).detach()
    ratio = log_ratio.exp()
    losses = -inputs.advantages * ratio.clamp(max=cap) * inputs.policy_log_prob

    loss = inputs.aggregate(inputs.weigh(losses.masked_fill(~trusted, 0)))
    return inputs.report(loss, pg_clipfrac=~trusted, pg_clipfrac_lower=trusted & (ratio > cap), ppo_kl=-log_ratio)
