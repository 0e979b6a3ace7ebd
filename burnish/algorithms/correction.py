"""The gap between the policy that sampled and the one that is trained: measured, and corrected in the loss.

Both have the same weights, or nearly, but a rollout engine computes in its own precision and order. Everything here
goes by the log-ratio at a sampled token, x = log π_train - log π_rollout, which is clamped to ±20 before it is
exponentiated. An impossible token, log π = -inf, counts as -1e4: one side alone is far off, and both agree. A NaN is
kept, in weights and in metrics: it is an engine's error, and not to be trained on.

    mismatch             the size of the gap, as metrics
    importance_weights   e^x, with a cap (TIS) or a band (IcePop): `rollout_is`
    reject               masks that take tokens or sequences with a large gap out of the loss: `rollout_rs`

`correct` does to a whole batch what `algorithm.rollout_correction` asks for, on the controller and before there is a
loss. `in_the_loss` does it inside the update, with `bypass_mode`: there the rollout's log-probs stand for the old ones,
the pass that would compute those is saved, and x is the gap of the policy as it is being updated.
Rejected tokens keep their weight, which no loss reads.

How we differ from the usual implementation:
- A row without a policy token counts nowhere. Elsewhere it enters means over sequences with weight 0, perplexity 1, or
  as one more sequence that was not rejected.
- Weights that are all 0 have an effective sample size of 0, and a batch without policy tokens has weights and metrics
  of 0; both end the run elsewhere.
- In `bypass_mode` a rejected token still counts in the loss's denominators: these are counts of the whole mini-batch,
  known before its log-probs are. So a rejection takes a token's gradient away and leaves that of all others as it was,
  however the batch is cut. Where a loss averages within a row (seq-mean-token-mean, gspo, sapo, geo_mean), it averages
  over what is left of that row, and only other rows stay as they were. `correct`, which sees the whole batch first,
  returns a mask, and what it rejects is not counted. Batch normalisation is refused in `bypass_mode` for the same
  reason.
"""

from dataclasses import dataclass, replace

import torch

from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.masked import masked_mean, zero_outside
from burnish.algorithms.tally import Metrics, effective_share, largest, mean_over_tokens, merge, smallest, spread
from burnish.config.algorithm import RolloutCorrectionConfig
from burnish.config.bounds import Rejection, WeightBounds, rejections, weight_bounds

LARGEST_LOG_RATIO = 20.0
LEAST_LOG_PROB = -1e4  # stands for -inf, of which the difference would be no number
WEIGHTS, MASKS = "rollout_corr/rollout_is", "rollout_corr/rollout_rs"


@dataclass(frozen=True)
class Corrected:
    weights: torch.Tensor | None  # (B, R) `rollout_is_weights`; None without `rollout_is`
    mask: torch.Tensor  # (B, R) the tokens that stay, in the type of the mask that came in
    metrics: dict[str, float]  # of weights and masks, `rollout_corr/…`; the gap itself is `mismatch`


def correct(
    log_probs: torch.Tensor, rollout_log_probs: torch.Tensor, mask: torch.Tensor, config: RolloutCorrectionConfig
) -> Corrected:
    """Weights and mask of a whole batch; all tensors (B, R)."""
    weights, kept, metrics = _corrections(log_probs, rollout_log_probs, mask, config)
    if weights is not None and config.rollout_is_batch_normalize:
        inside = mask.bool()
        per_row = mean_over_tokens(masked_mean(weights, inside, dim=-1), inside.any(-1))
        factor = mean_over_tokens(weights, inside) if config.rollout_is == "token" else per_row
        weights = weights / (factor.value or 1.0)  # weights that are all 0 stay so
        metrics[f"{WEIGHTS}_batch_norm_factor"] = factor
    return Corrected(weights, kept, merge([metrics]))


def in_the_loss(inputs: PolicyLossInputs, config: RolloutCorrectionConfig) -> tuple[PolicyLossInputs, Metrics]:
    """A micro-batch as its loss should see it under `bypass_mode`, and the gap and its correction as metrics.

    `inputs.old_log_prob` are the rollout's; weights and mask follow from the log-probs of this pass, without gradient.
    """
    sides = inputs.log_prob.detach(), inputs.old_log_prob, inputs.response_mask
    weights, kept, metrics = _corrections(*sides, config)
    return replace(inputs, response_mask=kept, rollout_is_weights=weights), metrics | mismatch(*sides)


def _corrections(
    log_probs: torch.Tensor, rollout_log_probs: torch.Tensor, mask: torch.Tensor, config: RolloutCorrectionConfig
) -> tuple[torch.Tensor | None, torch.Tensor, Metrics]:
    """What every row can be given without knowing the others: weights, mask, and tallies that add up over rows."""
    log_ratio = readable(log_probs, mask) - readable(rollout_log_probs, mask)
    weights, metrics = None, Metrics()
    if config.rollout_is:
        weights, metrics = importance_weights(log_ratio, mask, config.rollout_is, weight_bounds(config))
    kept, more = reject(log_ratio, mask, rejections(config))
    return weights, kept, metrics | more


def is_gap(name: str) -> bool:
    return name.startswith(("rollout_corr/", "training/rollout_probs_diff_"))


def mismatch(log_probs: torch.Tensor, rollout_log_probs: torch.Tensor | None, mask: torch.Tensor) -> Metrics:
    """How far the trained policy is from the one that sampled, of a batch or a micro-batch; all (B, R).

    Without the rollout's side: the training perplexity alone. docs/rollout-correction.md lists the metrics, which add
    up over micro-batches. KL estimates: Schulman, "Approximating KL divergence", 2020.

    How we differ: log-probs are held to -1e4 … 20, and what is exponentiated (x, its sums, a perplexity's logarithm) to
    ±20. So every metric is finite where a token is impossible to one side or to both.
    """
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


def importance_weights(
    log_ratio: torch.Tensor, mask: torch.Tensor, level: str, bounds: WeightBounds
) -> tuple[torch.Tensor, Metrics]:
    """Weights (B, R), 0 outside the mask; log_ratio (B, R) is 0 there.

    A token counts as often as the trained policy would have sampled it, per time it was sampled.

        token       w = e^x
        sequence    w = e^Σx, the sum over the sequence's policy tokens, on each of them
        cap         w = min(w, c)                      `rollout_is_threshold=c`: TIS, less variance for a little bias
        band        w = 0 where w < low or w > high    `rollout_is_threshold=low_high`: IcePop, drops what is far off

    Papers: TIS (Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"); IcePop
    (Ling Team 2025, "Every Step Evolves", arXiv:2510.18855).
    """
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
        f"{WEIGHTS}_mean": mean_over_tokens(weights, inside),
        f"{WEIGHTS}_std": spread(weights, inside, sample=False),
        f"{WEIGHTS}_max": largest(extremes, there),
        f"{WEIGHTS}_min": smallest(extremes, there),
        f"{WEIGHTS}_eff_sample_size": effective_share(weights, inside),
        f"{WEIGHTS}_ratio_fraction_high": mean_over_tokens(unit > high, there),
        f"{WEIGHTS}_ratio_fraction_low": mean_over_tokens(unit < low, there),
        **describe_rows(WEIGHTS, masked_mean(weights, inside, dim=-1), rows, centre=1),
        f"{WEIGHTS}_seq_fraction_high": mean_over_tokens(ratio_of_row > high, rows),
        f"{WEIGHTS}_seq_fraction_low": mean_over_tokens(ratio_of_row < low, rows),
    }
    if bounds.lower is not None:
        metrics[f"{WEIGHTS}_oob_ratio"] = mean_over_tokens(out, inside)
    return weights, metrics


def reject(log_ratio: torch.Tensor, mask: torch.Tensor, asked: tuple[Rejection, ...]) -> tuple[torch.Tensor, Metrics]:
    """The mask (B, R) without what was rejected; log_ratio (B, R) is 0 outside it.

    Tokens or sequences on which the two policies differ too much are removed from the loss. A mask of `rollout_rs`
    looks at

        k1   -x                 signed; its bounds lower_upper are those of e^-x, the ratio π_rollout / π_train
        k2   x² / 2             at most its bound
        k3   e^x - 1 - x        at most its bound

        token       of each token, which is kept or rejected alone
        seq_sum     the sum, seq_mean the mean, seq_max the largest of a sequence's tokens: it stays or goes whole

    A token stays if it passes every mask. `config/bounds.py` has the bounds of `rollout_rs_threshold`.
    """
    inside, metrics = mask.bool(), Metrics()
    if not asked:
        return mask, metrics
    kept = inside
    for rejection in asked:
        statistic = _statistic(log_ratio, inside, rejection)  # (B, R)
        passed = inside & (statistic >= rejection.lower) & (statistic <= rejection.upper)
        metrics |= _describe(statistic, inside, rejection) | _lost(f"{MASKS}_{rejection.name}", inside, passed)
        kept = kept & passed
    return kept.to(mask.dtype), metrics | _lost(MASKS, inside, kept)


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
    name, low, high = f"{MASKS}_{rejection.name}", rejection.lower, rejection.upper
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
