"""What the actor minimises: an objective is made for one mini-batch, whose counts normalise it, and called by
`Trainable.forward_backward` on each of its micro-batches. It runs the model (`engine/forward.py`) and gives the result
to the loss (`algorithms/losses/`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.correction import in_the_loss, mismatch
from burnish.algorithms.losses import TABLE, PolicyLoss
from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.losses.regularise import entropy_and_kl
from burnish.algorithms.tally import Metrics, Tally, mean_over_tokens, part_of_sum
from burnish.config.actor import ActorConfig
from burnish.config.algorithm import RolloutCorrectionConfig
from burnish.engine.forward import Forward
from burnish.engine.packing import pack
from burnish.errors import ConfigError
from burnish.protocol import DataProto
from burnish.workers.model_worker import lengths


def loss_mask(data: DataProto) -> Tensor:
    """(B, R) the tokens in the policy's loss: those it sampled, without those that a correction rejected. Padding rows
    of a dispatch have no token in `response_mask`, whatever the correction kept of what they repeat."""
    sampled: Tensor = data.batch["response_mask"]
    kept = data.batch.get("loss_mask", None)
    return sampled if kept is None else sampled * kept


def rows_with_gradient(data: DataProto) -> np.ndarray:
    """(B,) bool: the rows with an advantage other than 0 on a token of the policy's loss. Where there is none, the
    shortest row: its gradient of 0 still moves the optimiser's moments and decays weights, as all would."""
    signal: np.ndarray = ((data.batch["advantages"] != 0) & loss_mask(data).bool()).any(-1).numpy()
    if not signal.any():
        signal[np.argmin(lengths(data))] = True
    return signal


@dataclass(frozen=True)
class PolicyObjective:
    """Policy loss, less the entropy bonus, plus the KL to the reference."""

    forward: Forward
    policy_loss: PolicyLoss
    config: ActorConfig
    counts: LossCounts  # of the mini-batch
    max_response_length: int
    temperature: float
    outputs: tuple[str, ...]  # of the log-prob pass; the loss and the entropy bonus say which
    bypass: RolloutCorrectionConfig | None  # with bypass_mode: correct the gap to the rollout engine here

    def __call__(self, micro: DataProto) -> tuple[Tensor, Metrics]:
        passed = self.forward.log_probs(pack(micro.batch), self.temperature, self.outputs)  # name → (b, R)
        inputs, gap = self.inputs(micro, passed)
        loss, metrics = checked(self.policy_loss(inputs), f"{TABLE.key}={self.config.policy_loss.loss_mode}")
        more, more_metrics = entropy_and_kl(inputs)
        ppo_kl = mean_over_tokens(-inputs.log_ratio(), inputs.response_mask)
        always: Metrics = {"actor/pg_loss": part_of_sum(loss), "actor/ppo_kl": ppo_kl}  # also of a loss that has none
        return loss + more, always | metrics | more_metrics | gap

    def inputs(self, rows: DataProto, passed: Mapping[str, Tensor]) -> tuple[PolicyLossInputs, Metrics]:
        """What the loss is given of these rows, for which the log-prob pass gave `passed`; and the gap to the rollout
        engine where it is measured here. Without `old_log_probs` the policy that is updated is the one of before."""
        batch = rows.batch
        inputs = PolicyLossInputs(
            old_log_prob=batch.get("old_log_probs", passed["log_prob"].detach()),
            log_prob=passed["log_prob"],
            advantages=batch["advantages"],
            response_mask=loss_mask(rows),
            config=self.config,
            counts=self.counts,
            max_response_length=self.max_response_length,
            rollout_is_weights=batch.get("rollout_is_weights", None),
            entropy=passed.get("entropy"),
            ref_log_prob=batch.get("ref_log_prob", None),
            outputs=passed,
            chosen=batch.get("chosen", None),
        )
        if self.bypass is not None:
            return in_the_loss(inputs, self.bypass)
        if "old_log_probs" in batch:
            return inputs, {}
        # What the pass over old log-probs would have reported: the gap to the rollout engine, and the entropy.
        rollout = batch.get("rollout_log_probs", None)
        metrics: Metrics = {} if rollout is None else mismatch(inputs.old_log_prob, rollout, inputs.response_mask)
        if inputs.entropy is not None:
            metrics["actor/entropy"] = mean_over_tokens(inputs.entropy.detach(), inputs.response_mask)
        return inputs, metrics


def checked(result: Any, name: str) -> tuple[Tensor, Metrics]:
    """A loss may be a user's: what it returns is checked before it is differentiated."""
    if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[1], Mapping):
        raise ConfigError(f"{name} returned a {type(result).__name__}; (loss, dictionary of metrics) is needed")
    loss, metrics = result
    if not isinstance(loss, Tensor) or loss.ndim or not loss.requires_grad:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise ConfigError(f"{name} returned {found} as its loss; a scalar made from inputs.log_prob is needed")
    for key, metric in metrics.items():
        if not isinstance(metric, Tally):
            raise ConfigError(
                f"{name} returned a {type(metric).__name__} as metric {key!r}; a tally is needed, such as "
                "mean_over_tokens(values, inputs.response_mask) of burnish.algorithms.tally"
            )
    return loss, dict(metrics)
