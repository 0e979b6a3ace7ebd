"""What is minimised: the losses of actor and critic on one micro-batch.

An objective is made for one mini-batch, whose counts normalise it, and called by `Trainable.forward_backward` on each
of the micro-batches that mini-batch is cut into. It runs the model (`engine/forward.py`) and hands the result to the
loss (`algorithms/losses/`), so this is where the two meet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.correction import in_the_loss, mismatch
from burnish.algorithms.losses import TABLE, PolicyLoss
from burnish.algorithms.losses.inputs import PolicyLossInputs, ValueLossInputs
from burnish.algorithms.losses.regularise import entropy_and_kl
from burnish.algorithms.losses.value import value_loss
from burnish.algorithms.tally import Metrics, Tally, mean_over_tokens, part_of_sum
from burnish.config.actor import ActorConfig
from burnish.config.algorithm import RolloutCorrectionConfig
from burnish.config.critic import CriticConfig
from burnish.engine.forward import Forward
from burnish.engine.packing import pack
from burnish.errors import ConfigError
from burnish.protocol import DataProto
from burnish.workers.updates import loss_mask


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
        """What the loss is given of these rows, and the gap to the rollout engine where it is measured here.

        `passed` is what the log-prob pass gave for the rows. Without `old_log_probs` the policy that is updated is the
        one of before: the same log-probs, without gradient.
        """
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
        return inputs, self._seen_here(inputs, batch.get("rollout_log_probs", None))

    @staticmethod
    def _seen_here(inputs: PolicyLossInputs, rollout: Tensor | None) -> Metrics:
        """What the pass over old log-probs would have reported: entropy, and the gap to the rollout engine."""
        metrics: Metrics = {} if rollout is None else mismatch(inputs.old_log_prob, rollout, inputs.response_mask)
        if inputs.entropy is not None:
            metrics["actor/entropy"] = mean_over_tokens(inputs.entropy.detach(), inputs.response_mask)
        return metrics


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


@dataclass(frozen=True)
class ValueObjective:
    """The critic's clipped squared error."""

    forward: Forward
    config: CriticConfig
    counts: LossCounts  # of the mini-batch
    max_response_length: int

    def __call__(self, micro: DataProto) -> tuple[Tensor, Metrics]:
        batch = micro.batch
        inputs = ValueLossInputs(
            vpreds=self.forward.values(pack(batch)),
            values=batch["values"],
            returns=batch["returns"],
            response_mask=batch["response_mask"],
            config=self.config,
            counts=self.counts,
            max_response_length=self.max_response_length,
        )
        return value_loss(inputs)
