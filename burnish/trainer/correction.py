"""The gap between the policy that sampled and the one that is trained: measured every step, corrected where asked.

Both have the same weights, but the rollout engine computes them in another way (kernels, precision, batch shapes), so
the probabilities differ a little. `algorithm.rollout_correction.mode` says what follows from that:

    measure   nothing; a warning when the gap passes `gap_threshold`
    auto      a correction as soon as the step before had a gap past the threshold, until one had at most half of it
    on        a correction in every step
    off       nothing, and no warning

The gap is the mean over tokens of the k3 estimate of the KL (`rollout_corr/k3_kl`). Consumes the log-probs of both
sides; adds `rollout_is_weights` (B, R), which weigh the loss, and `loss_mask` (B, R), the tokens that stay in it, each
where it is asked for. Whether `auto` is on is part of the checkpoint. Where nothing else asks for log-probs before the
update, and with `bypass_mode`, the training side is known only in the update, whose first optimiser step then measures
the gap (`workers/objectives.py`).
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from burnish.algorithms.correction import correct, mismatch
from burnish.algorithms.tally import merge
from burnish.config.algorithm import RolloutCorrectionConfig
from burnish.errors import RolloutError
from burnish.protocol import DataProto

GAP = "rollout_corr/k3_kl"
SWITCH = "algorithm.rollout_correction.mode"

log = logging.getLogger(__name__)


class RolloutCorrection:
    """Whether this run corrects the gap at this step, and the correction."""

    def __init__(self, config: RolloutCorrectionConfig, event: Callable[..., None]):
        self.config, self.event = config, event
        self.active = config.mode == "on"
        self.warned = False

    @property
    def reads_old_log_probs(self) -> bool:
        """Whether the training side is needed before the update: to correct with it, or to decide on all rows alike."""
        return self.config.bypass_mode or self.config.mode in ("on", "auto")

    def __call__(self, batch: DataProto, metrics: dict[str, float]) -> DataProto:
        """Measure the batch, and correct it where that is on."""
        columns = batch.batch
        if self.config.bypass_mode or "rollout_log_probs" not in columns:
            return batch
        metrics["rollout_corr/active"] = float(self.active)
        if "old_log_probs" not in columns:
            return batch  # the update measures the gap
        sides = columns["old_log_probs"], columns["rollout_log_probs"], columns["response_mask"]
        metrics |= merge([mismatch(*sides)])
        if not self.active:
            return batch
        corrected = correct(*sides, self.config)
        metrics |= corrected.metrics
        added = {}
        if corrected.weights is not None:
            added["rollout_is_weights"] = corrected.weights
        if self.config.rollout_rs:
            if not bool(corrected.mask.any()):
                raise RolloutError(
                    f"algorithm.rollout_correction.rollout_rs={self.config.rollout_rs} rejected every token of the "
                    f"batch (the gap is {metrics[GAP]:.3g}); widen rollout_rs_threshold, or look at the rollout engine"
                )
            added["loss_mask"] = corrected.mask
        return batch.union(DataProto.from_dict(added)) if added else batch

    def watch(self, metrics: Mapping[str, float], step: int) -> None:
        """After a step: switch `auto` for the next one; under `measure`, warn once of a gap past the threshold."""
        mode, threshold, gap = self.config.mode, self.config.gap_threshold, metrics.get(GAP)
        if gap is None:
            return
        facts = {"step": step, "gap": gap, "threshold": threshold}
        found = f"step {step}: rollout and training disagree by {gap:.3g} ({GAP}; gap_threshold={threshold:g})"
        if mode == "measure" and not gap <= threshold and not self.warned:  # a gap of NaN is past any threshold
            self.warned = True
            self.event("rollout_gap", **facts)
            log.warning(
                "%s%s", found, "" if self.config.bypass_mode else f", and nothing corrects it; {SWITCH}=auto would"
            )
        if mode != "auto":
            return
        active = not gap <= (threshold / 2 if self.active else threshold)
        if active != self.active:
            self.active = active
            self.event("rollout_correction", active=active, **facts)
            log.warning("%s: %s", found, "corrected from the next step on" if active else "no longer corrected")

    def state_dict(self) -> dict[str, bool]:
        return {"active": self.active}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Under `auto` continue as it stood; the other modes are what the configuration says."""
        if self.config.mode == "auto":
            self.active = bool(state.get("active", False))
