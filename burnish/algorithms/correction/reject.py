"""Rejection: tokens or sequences on which the two policies differ too much are removed from the loss.

With x = log π_train - log π_rollout, a mask of `rollout_rs` looks at

    k1   -x                 signed; its bounds lower_upper are those of e^-x, the ratio π_rollout / π_train
    k2   x² / 2             at most its bound
    k3   e^x - 1 - x        at most its bound

    token       of each token, which is kept or rejected alone
    seq_sum     the sum, seq_mean the mean, seq_max the largest over a sequence's policy tokens: it stays or goes whole

A token stays if it passes every mask. `config/bounds.py` has the bounds of `rollout_rs_threshold`.

Note the direction of k1: token_k1 with 0.5_2.0 keeps π_rollout / π_train between 0.5 and 2, so its lower bound is about
tokens that training finds likelier than the rollout did. With lower = 1/upper the direction does not matter.

Metrics, `rollout_corr/rollout_rs_<mask>_*`, are of the statistic: mean, std (cut to the bounds), max, min, the share
beyond each bound, the same for its mean by sequence (`_seq_*`), and how many tokens and how many sequences lost
something (`_masked_fraction`, `_seq_masked_fraction`); without a mask's name, those of all masks together.
"""

import torch

from burnish.algorithms.correction.measure import bounded, describe_rows, k3
from burnish.algorithms.masked import masked_mean, zero_outside
from burnish.algorithms.tally import Metrics, largest, mean_over_tokens, smallest, spread
from burnish.config.bounds import Rejection

NAME = "rollout_corr/rollout_rs"


def reject(
    log_ratio: torch.Tensor, mask: torch.Tensor, rejections: tuple[Rejection, ...]
) -> tuple[torch.Tensor, Metrics]:
    """The mask (B, R) without what was rejected; log_ratio (B, R) is 0 outside it."""
    inside, metrics = mask.bool(), Metrics()
    if not rejections:
        return mask, metrics
    kept = inside
    for rejection in rejections:
        statistic = _statistic(log_ratio, inside, rejection)  # (B, R)
        passed = inside & (statistic >= rejection.lower) & (statistic <= rejection.upper)
        metrics |= _describe(statistic, inside, rejection) | _lost(f"{NAME}_{rejection.name}", inside, passed)
        kept = kept & passed
    return kept.to(mask.dtype), metrics | _lost(NAME, inside, kept)


def _statistic(log_ratio: torch.Tensor, inside: torch.Tensor, rejection: Rejection) -> torch.Tensor:
    """(B, R) what is compared with the bounds, the sequence's on each of its tokens; 0 outside the mask."""
    x = bounded(log_ratio)
    values = {"k1": lambda: -x, "k2": lambda: x**2 / 2, "k3": lambda: k3(x)}[rejection.kind]()
    if rejection.level == "token":
        return values
    over_row = {
        "seq_sum": lambda: values.sum(-1, keepdim=True),
        "seq_mean": lambda: masked_mean(values, inside, dim=-1).unsqueeze(-1),
        "seq_max": lambda: values.amax(-1, keepdim=True),  # of k2 or k3, which are 0 outside and never less inside
    }[rejection.level]()
    return zero_outside(over_row.expand_as(values), inside)


def _describe(statistic: torch.Tensor, inside: torch.Tensor, rejection: Rejection) -> Metrics:
    name, low, high = f"{NAME}_{rejection.name}", rejection.lower, rejection.upper
    per_row, rows = masked_mean(statistic, inside, dim=-1), inside.any(-1)
    unit, there = (statistic, inside) if rejection.level == "token" else (per_row, rows)
    metrics: Metrics = {
        f"{name}_mean": mean_over_tokens(statistic, inside),
        f"{name}_std": spread(statistic.clamp(low, high), inside, sample=False),
        f"{name}_max": largest(statistic, inside),
        f"{name}_min": smallest(statistic, inside),
        f"{name}_fraction_high": mean_over_tokens(unit > high, there),
        f"{name}_fraction_low": mean_over_tokens(unit < low, there),
        **describe_rows(name, per_row, rows, centre=0),
        f"{name}_seq_fraction_high": mean_over_tokens(per_row > high, rows),
    }
    if rejection.kind == "k1":  # the others have no lower bound
        metrics[f"{name}_seq_fraction_low"] = mean_over_tokens(per_row < low, rows)
    return metrics


def _lost(name: str, inside: torch.Tensor, kept: torch.Tensor) -> Metrics:
    return {
        f"{name}_masked_fraction": mean_over_tokens(inside & ~kept, inside),
        f"{name}_seq_masked_fraction": mean_over_tokens((inside & ~kept).any(-1), inside.any(-1)),
    }
