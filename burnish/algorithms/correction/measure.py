"""How far the trained policy is from the one that sampled, in numbers that add up over micro-batches.

With x = log π_train - log π_rollout at a token the policy sampled, and p its probability:

    rollout_corr/kl, k3_kl                   KL(rollout ‖ train): mean of -x; of e^x - 1 - x, which is never negative
    rollout_corr/chi2_token, chi2_seq        mean of e^2x - 1 over tokens; over sequences, with the sum of their x
    rollout_corr/training_ppl, rollout_ppl   mean over sequences of the perplexity; `…_log_ppl` of its logarithm
    rollout_corr/log_ppl_diff                that of training less that of the rollout; also `_abs_`, `_max`, `_min`
    rollout_corr/ppl_ratio                   mean over sequences of the quotient of the two
    training/rollout_probs_diff_*            mean, max and std of |p_train - p_rollout|

KL estimates: Schulman, "Approximating KL divergence", 2020. How we differ: rows without a policy token do not count;
log-probs are held to -1e4 … 20, and what is exponentiated (x, its sums, a perplexity's logarithm) to ±20. So every
metric is finite where a token is impossible to one side or to both. A NaN is an engine's error, and stays one.
"""

import torch

from burnish.algorithms.masked import masked_mean, zero_outside
from burnish.algorithms.tally import Metrics, largest, mean_over_tokens, smallest, spread

LARGEST_LOG_RATIO = 20.0
LEAST_LOG_PROB = -1e4  # stands for -inf, of which the difference would be no number


def mismatch(log_probs: torch.Tensor, rollout_log_probs: torch.Tensor | None, mask: torch.Tensor) -> Metrics:
    """The gap of a batch or of a micro-batch; all (B, R). Without the rollout's side: the training perplexity alone."""
    inside, rows = mask.bool(), mask.bool().any(-1)
    trained = readable(log_probs.detach(), inside)
    trained_log_ppl = -masked_mean(trained, inside, dim=-1).double()  # (B,)
    metrics: Metrics = {
        "rollout_corr/training_ppl": mean_over_tokens(bounded(trained_log_ppl).exp(), rows),
        "rollout_corr/training_log_ppl": mean_over_tokens(trained_log_ppl, rows),
    }
    if rollout_log_probs is None:
        return metrics
    sampled = readable(rollout_log_probs, inside)
    sampled_log_ppl = -masked_mean(sampled, inside, dim=-1).double()
    log_ratio, apart = trained - sampled, trained_log_ppl - sampled_log_ppl
    probability = (trained.exp() - sampled.exp()).abs()
    return metrics | {
        "rollout_corr/kl": mean_over_tokens(-log_ratio, inside),
        "rollout_corr/k3_kl": mean_over_tokens(k3(log_ratio), inside),
        "rollout_corr/rollout_ppl": mean_over_tokens(bounded(sampled_log_ppl).exp(), rows),
        "rollout_corr/rollout_log_ppl": mean_over_tokens(sampled_log_ppl, rows),
        "rollout_corr/log_ppl_diff": mean_over_tokens(apart, rows),
        "rollout_corr/log_ppl_abs_diff": mean_over_tokens(apart.abs(), rows),
        "rollout_corr/log_ppl_diff_max": largest(apart, rows),
        "rollout_corr/log_ppl_diff_min": smallest(apart, rows),
        "rollout_corr/ppl_ratio": mean_over_tokens(bounded(apart).exp(), rows),
        "rollout_corr/chi2_token": mean_over_tokens((2 * bounded(log_ratio)).expm1(), inside),
        "rollout_corr/chi2_seq": mean_over_tokens((2 * bounded(log_ratio.sum(-1))).expm1(), rows),
        "training/rollout_probs_diff_mean": mean_over_tokens(probability, inside),
        "training/rollout_probs_diff_max": largest(probability, inside),
        "training/rollout_probs_diff_std": spread(probability, inside),
    }


def readable(log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Log-probs that can be subtracted and exponentiated, 0 outside the mask."""
    return zero_outside(log_probs, mask).clamp(LEAST_LOG_PROB, LARGEST_LOG_RATIO)


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """e^x - 1 - x; rounding makes it no less than 0."""
    return (bounded(log_ratio).expm1() - log_ratio).clamp(min=0)


def bounded(log_ratio: torch.Tensor) -> torch.Tensor:
    """A log-ratio whose exponential is finite."""
    return log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def describe_rows(name: str, per_row: torch.Tensor, rows: torch.Tensor, centre: float) -> Metrics:
    """The rows' values (B,), and how far the farthest is from `centre`, the value without a gap."""
    return {
        f"{name}_seq_mean": mean_over_tokens(per_row, rows),
        f"{name}_seq_std": spread(per_row, rows),
        f"{name}_seq_max": largest(per_row, rows),
        f"{name}_seq_min": smallest(per_row, rows),
        f"{name}_seq_max_deviation": largest((per_row - centre).abs(), rows),
    }
