"""Credit: from scores to advantages, on the controller.

Consumes a batch with scores and log-probs; adds what corrects the gap to the rollout engine (`correction.py`),
`token_level_rewards` (scores, less the KL to the reference where it is in the reward), `advantages` and `returns`.
Which estimator does it is the configuration's choice; this file names none. What the estimator declares as its needs
is handed to it.
"""

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import torch

from burnish.algorithms import advantages
from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.kl import apply_kl_penalty, kl_controller
from burnish.config.algorithm import AlgorithmConfig
from burnish.errors import BadStepError, ConfigError, RewardError
from burnish.protocol import DataProto
from burnish.trainer.correction import RolloutCorrection

COLUMNS = {"log_prob": "old_log_probs", "entropy": "entropys"}  # outputs of the log-prob pass that have their own name


class Credit:
    """The estimator, the KL controller and the correction of a run; the state of the latter two is in the checkpoint.

    `event(kind, **facts)` records what the run should remember.
    """

    def __init__(self, config: AlgorithmConfig, event: Callable[..., None]):
        self.config = config
        self.needs = advantages.needs_of(config.adv_estimator)
        self.estimator = advantages.estimator(config.adv_estimator)
        self.controller = kl_controller(config.kl_ctrl)
        self.correction = RolloutCorrection(config.rollout_correction, event)

    def __call__(self, batch: DataProto, metrics: dict[str, float]) -> DataProto:
        """Add the credit columns to the batch, and what the correction and the KL did to the metrics."""
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
        rewards, kl_metrics = apply_kl_penalty(
            scores,
            columns["old_log_probs"],
            columns["ref_log_prob"],
            columns["response_mask"],
            self.config.kl_penalty,
            self.controller,
        )
        metrics.update(kl_metrics)
        return rewards

    def _inputs(self, batch: DataProto, rewards: torch.Tensor) -> AdvantageInputs:
        columns, needs = batch.batch, self.needs
        return AdvantageInputs(
            token_level_rewards=rewards,
            response_mask=columns["response_mask"],
            uids=batch.non_tensor_batch["uid"],
            config=self.config,
            values=columns["values"] if needs.critic else None,
            reward_baselines=columns["reward_baselines"] if needs.greedy_baseline else None,
            reward_components=self._components(batch) if needs.reward_components else {},
            process_rewards=columns["process_rewards"] if needs.process_reward else None,
            outputs={name: columns[COLUMNS.get(name, name)] for name in needs.outputs},
            old_log_probs=columns.get("old_log_probs", None),
            rollout_is_weights=columns.get("rollout_is_weights", None),
        )

    def _components(self, batch: DataProto) -> dict[str, torch.Tensor]:
        """The values of the reward function that `algorithm.gdpo_reward_keys` names, each (B,)."""
        infos = batch.non_tensor_batch["reward_info"]
        names = self.config.gdpo_reward_keys or []
        return {
            name: torch.tensor([_component(infos[i], name, batch, i) for i in range(len(batch))], dtype=torch.float64)
            for name in names
        }

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
        advantage, returns = result
        return advantage, returns


def _component(info: Mapping[str, Any], name: str, batch: DataProto, row: int) -> float:
    value = info.get(name)
    if not isinstance(value, Real) or value != value or abs(value) == float("inf"):
        found = f"{value!r}, not a finite number" if name in info else f"not there (it has {', '.join(info) or 'none'})"
        raise RewardError(
            f"algorithm.gdpo_reward_keys names {name!r}, which in what the reward function returned for uid "
            f"{batch.non_tensor_batch['uid'][row]} (data_source {batch.non_tensor_batch['data_source'][row]}) is "
            f'{found}; return it along with "score", or name another key'
        )
    return float(value)
