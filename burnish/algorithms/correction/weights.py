"""Importance weights: a token counts as often as the trained policy would have sampled it, per time it was sampled.

    token       w = e^x
    sequence    w = e^Σx, the sum over the sequence's policy tokens, on each of them
    cap         w = min(w, c)                      `rollout_is_threshold=c`: TIS, bounds the variance for a little bias
    band        w = 0 where w < low or w > high    `rollout_is_threshold=low_high`: IcePop, drops what is far off

with x = log π_train - log π_rollout. `rollout_is` chooses between token and sequence; `rollout_is_batch_normalize`
divides by the mean over the batch's tokens (token) or sequences (sequence).

Papers: TIS (Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"); IcePop (Ling
Team 2025, "Every Step Evolves", arXiv:2510.18855).

Metrics, `rollout_corr/rollout_is_*`: mean, std, max and min are those of the weights that are used (max and min of
sequence weights: before the cap); fractions count ratios beyond the bounds, where a cap c has 1/c as its lower one;
`_seq_*` are about each sequence's mean weight; `_eff_sample_size` is (Σw)² / (n Σw²), 1 for equal weights.
"""

import torch

from burnish.algorithms.correction.measure import bounded, describe_rows
from burnish.algorithms.masked import masked_mean, zero_outside
from burnish.algorithms.tally import Metrics, effective_share, largest, mean_over_tokens, smallest, spread
from burnish.config.bounds import WeightBounds

NAME = "rollout_corr/rollout_is"


def importance_weights(
    log_ratio: torch.Tensor, mask: torch.Tensor, level: str, bounds: WeightBounds
) -> tuple[torch.Tensor, Metrics]:
    """Weights (B, R), 0 outside the mask; log_ratio (B, R) is 0 there."""
    inside, rows = mask.bool(), mask.bool().any(-1)
    per_row = bounded(log_ratio.sum(-1)).exp()  # (B,)
    whole = per_row.unsqueeze(-1).expand_as(log_ratio)
    ratio = zero_outside(bounded(log_ratio).exp() if level == "token" else whole, inside)
    low, high = bounds.lower or 1 / bounds.upper, bounds.upper
    out = (ratio < low) | (ratio > high)
    weights = ratio.clamp(max=high) if bounds.lower is None else ratio.masked_fill(out, 0)

    # What is bounded: tokens by themselves, or sequences as a whole.
    unit, there = (ratio, inside) if level == "token" else (per_row, rows)
    extremes = weights if level == "token" else per_row
    ratio_of_row = masked_mean(ratio, inside, dim=-1)
    metrics: Metrics = {
        f"{NAME}_mean": mean_over_tokens(weights, inside),
        f"{NAME}_std": spread(weights, inside, sample=False),
        f"{NAME}_max": largest(extremes, there),
        f"{NAME}_min": smallest(extremes, there),
        f"{NAME}_eff_sample_size": effective_share(weights, inside),
        f"{NAME}_ratio_fraction_high": mean_over_tokens(unit > high, there),
        f"{NAME}_ratio_fraction_low": mean_over_tokens(unit < low, there),
        **describe_rows(NAME, masked_mean(weights, inside, dim=-1), rows, centre=1),
        f"{NAME}_seq_fraction_high": mean_over_tokens(ratio_of_row > high, rows),
        f"{NAME}_seq_fraction_low": mean_over_tokens(ratio_of_row < low, rows),
    }
    if bounds.lower is not None:
        metrics[f"{NAME}_oob_ratio"] = mean_over_tokens(out, inside)
    return weights, metrics


def normalise(weights: torch.Tensor, mask: torch.Tensor, level: str | None) -> tuple[torch.Tensor, Metrics]:
    """The weights of a whole batch divided by their mean, (B, R); weights that are all 0 stay so."""
    inside = mask.bool()
    per_row = mean_over_tokens(masked_mean(weights, inside, dim=-1), inside.any(-1))
    factor = mean_over_tokens(weights, inside) if level == "token" else per_row
    return weights / (factor.value or 1.0), {f"{NAME}_batch_norm_factor": factor}
