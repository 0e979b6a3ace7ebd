"""Credit: from scores to advantages, on the controller.

Measures the gap between the policy that sampled and the one that is trained, and corrects it as configured; adds
`token_level_rewards` (scores, less the KL where it is in the reward), `advantages` and `returns`. Which estimator does
it is the configuration's choice; what it declares as its needs is handed to it.
"""

import logging
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import torch

from burnish.algorithms import advantages
from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.correction import correct, mismatch
from burnish.algorithms.kl import apply_kl_penalty, kl_controller
from burnish.algorithms.tally import merge
from burnish.config.algorithm import AlgorithmConfig, RolloutCorrectionConfig
from burnish.errors import BadStepError, ConfigError, RewardError, RolloutError
from burnish.protocol import DataProto
from burnish.rewards.contract import LARGEST_SCORE, score_problem

GAP = "rollout_corr/k3_kl"  # mean over tokens of the k3 estimate of the KL
SWITCH = "algorithm.rollout_correction.mode"
COLUMNS = {"log_prob": "old_log_probs", "entropy": "entropys"}  # outputs of the log-prob pass that have their own name

log = logging.getLogger(__name__)


def reward_tokens(batch: DataProto, model: Any, update: str, step: int) -> tuple[DataProto, dict[str, list[float]]]:
    """The batch with the rewards per token, `process_rewards` (B, R), of a model that is trained along, and the metrics
    of its update. It learns from the batch's `outcomes` (B,) `before` it rewards it or `after`."""
    batch = batch.union(model.compute_start_log_prob(batch))
    if update == "before":
        updates = model.update_process_reward(batch, step)
        return batch.union(model.compute_process_reward(batch)), updates
    rewarded = batch.union(model.compute_process_reward(batch))
    return rewarded, model.update_process_reward(batch, step)


class Credit:
    """Estimator, KL controller and correction of a run; the state of the latter two is in the checkpoint."""

    def __init__(self, config: AlgorithmConfig, event: Callable[..., None]):
        self.config = config
        self.needs = advantages.needs_of(config.adv_estimator)
        self.estimator = advantages.estimator(config.adv_estimator)
        self.controller = kl_controller(config.kl_ctrl)
        self.correction = RolloutCorrection(config.rollout_correction, event)

    def __call__(self, batch: DataProto, metrics: dict[str, float]) -> DataProto:
        batch = self.correction(batch, metrics)
        rewards = self._rewards(batch.batch, metrics)  # (B, R)
        inputs = self._inputs(batch, rewards)
        metrics.update({f"reward/{name}/mean": float(part.mean()) for name, part in inputs.reward_components.items()})
        advantage, returns = self._checked(self.estimator(inputs), rewards.shape)
        credit = {"token_level_rewards": rewards, "advantages": advantage, "returns": returns}
        return batch.union(DataProto.from_dict(credit))

    @property
    def reads_old_log_probs(self) -> bool:
        """Whether rewards, a correction or the estimator read them in this step. A user's own may, undeclared."""
        reads = self.config.use_kl_in_reward or bool(self.needs.outputs)
        own = not advantages.TABLE.is_built_in(self.config.adv_estimator)
        return reads or own or self.correction.reads_old_log_probs

    def state_dict(self) -> dict[str, Any]:
        return {"kl": self.controller.state_dict(), "correction": self.correction.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.controller.load_state_dict(state["kl"])
        self.correction.load_state_dict(state["correction"])

    def _rewards(self, columns: Any, metrics: dict[str, float]) -> torch.Tensor:
        scores: torch.Tensor = columns["token_level_scores"]
        if not self.config.use_kl_in_reward:
            return scores
        sides = columns["old_log_probs"], columns["ref_log_prob"], columns["response_mask"]
        rewards, kl_metrics = apply_kl_penalty(scores, *sides, self.config.kl_penalty, self.controller)
        metrics.update(kl_metrics)
        return rewards

    def _inputs(self, batch: DataProto, rewards: torch.Tensor) -> AdvantageInputs:
        columns, needs, names = batch.batch, self.needs, self.config.gdpo_reward_keys or []
        components = {  # (B,) each: values of the reward function
            name: torch.tensor([_component(batch, i, name) for i in range(len(batch))], dtype=torch.float64)
            for name in (names if needs.reward_components else [])
        }
        return AdvantageInputs(
            token_level_rewards=rewards,
            response_mask=columns["response_mask"],
            uids=batch.non_tensor_batch["uid"],
            config=self.config,
            values=columns["values"] if needs.critic else None,
            reward_baselines=columns["reward_baselines"] if needs.greedy_baseline else None,
            reward_components=components,
            process_rewards=columns["process_rewards"] if needs.process_reward else None,
            outputs={name: columns[COLUMNS.get(name, name)] for name in needs.outputs},
            old_log_probs=columns.get("old_log_probs", None),
            rollout_is_weights=columns.get("rollout_is_weights", None),
        )

    def _checked(self, result: Any, shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
        """An estimator may be a user's: what it returns is checked before it reaches the loss."""
        name = f"algorithm.adv_estimator={self.config.adv_estimator}"
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise ConfigError(f"{name} returned a {type(result).__name__}; (advantages, returns) is needed")
        for what, tensor in zip(("advantages", "returns"), result, strict=True):
            found = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            if found != tuple(shape):
                raise ConfigError(f"{name} returned {found} as {what}; a tensor of {tuple(shape)} (B, R) is needed")
            if not bool(tensor.isfinite().all()):
                row = int((~tensor.isfinite()).any(-1).nonzero()[0])
                raise BadStepError(f"{name} returned {what} that are NaN or infinite, first in row {row} of the batch")
        return result[0], result[1]


def _component(batch: DataProto, row: int, name: str) -> float:
    info: Mapping[str, Any] = batch.non_tensor_batch["reward_info"][row]
    value = info.get(name)
    if not isinstance(value, Real) or score_problem(float(value)):
        most = f"a finite number of at most {LARGEST_SCORE:g}"
        found = f"{value!r}, not {most}" if name in info else f"not there (it has {', '.join(info) or 'none'})"
        raise RewardError(
            f"algorithm.gdpo_reward_keys names {name!r}, which in what the reward function returned for uid "
            f"{batch.non_tensor_batch['uid'][row]} (data_source {batch.non_tensor_batch['data_source'][row]}) is "
            f'{found}; return it along with "score", or name another key'
        )
    return float(value)


class RolloutCorrection:
    """Adds `rollout_is_weights` (B, R) and `loss_mask` (B, R), the tokens in the loss; with `auto` from the step after
    one past the threshold until one had at most half. If nothing reads old log-probs, the update measures the gap."""

    def __init__(self, config: RolloutCorrectionConfig, event: Callable[..., None]):
        self.config, self.event = config, event
        self.active = config.mode == "on"
        self.warned = False

    @property
    def reads_old_log_probs(self) -> bool:
        """Whether the training side is needed before the update: to correct with it, or to decide on all rows alike."""
        return self.config.bypass_mode or self.config.mode in ("on", "auto")

    def __call__(self, batch: DataProto, metrics: dict[str, float]) -> DataProto:
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
            cure = "" if self.config.bypass_mode else f", and nothing corrects it; {SWITCH}=auto would"
            log.warning("%s%s", found, cure)
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
