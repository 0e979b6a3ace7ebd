"""The gap between the policy that sampled and the one that is trained: measured, and corrected in the loss.

Both have the same weights, or nearly, but a rollout engine computes in its own precision and order. Everything here
goes by the log-ratio at a sampled token,

    x = log π_train - log π_rollout         0 where they agree; clamped to ±20 before it is exponentiated

An impossible token, log π = -inf, counts as -1e4: one side alone is far off, and both agree. A NaN is kept, in weights
and in metrics: it is an engine's error, and not to be trained on.

    measure.py   `mismatch`: the size of the gap, as metrics
    weights.py   importance weights e^x, with a cap (TIS) or a band (IcePop): `rollout_is`
    reject.py    masks that take tokens or sequences with a large gap out of the loss: `rollout_rs`

`correct` does to a whole batch what `algorithm.rollout_correction` asks for, on the controller and before there is a
loss. `in_the_loss` does it inside the update, with `bypass_mode`: there the rollout's log-probs stand for the old ones,
the pass that would compute those is saved, and x is the gap of the policy as it is being updated.

What is 0 outside the mask: weights and masks; what stands there in the log-probs is not read. Rejected tokens keep
their weight, which no loss reads.

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

from burnish.algorithms.correction.measure import mismatch, readable
from burnish.algorithms.correction.reject import reject
from burnish.algorithms.correction.weights import importance_weights, normalise
from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.tally import Metrics, merge
from burnish.config.algorithm import RolloutCorrectionConfig
from burnish.config.bounds import rejections, weight_bounds

__all__ = ["Corrected", "correct", "in_the_loss", "is_gap", "mismatch"]


@dataclass(frozen=True)
class Corrected:
    """What a correction hands to the loss."""

    weights: torch.Tensor | None  # (B, R) `rollout_is_weights`; None without `rollout_is`
    mask: torch.Tensor  # (B, R) the tokens that stay, in the type of the mask that came in
    metrics: dict[str, float]  # of weights and masks, `rollout_corr/…`; the gap itself is `mismatch`


def correct(
    log_probs: torch.Tensor, rollout_log_probs: torch.Tensor, mask: torch.Tensor, config: RolloutCorrectionConfig
) -> Corrected:
    """Weights and mask of a whole batch; all tensors (B, R)."""
    weights, kept, metrics = _corrections(log_probs, rollout_log_probs, mask, config)
    if weights is not None and config.rollout_is_batch_normalize:
        weights, more = normalise(weights, mask, config.rollout_is)
        metrics |= more
    return Corrected(weights, kept, merge([metrics]))


def in_the_loss(inputs: PolicyLossInputs, config: RolloutCorrectionConfig) -> tuple[PolicyLossInputs, Metrics]:
    """A micro-batch as its loss should see it under `bypass_mode`, and the gap and its correction as metrics.

    `inputs.old_log_prob` are the rollout's; weights and mask follow from the log-probs of this very pass, without
    gradient.
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
    """Whether a metric is about the gap or its correction."""
    return name.startswith(("rollout_corr/", "training/rollout_probs_diff_"))
