"""Credit: from scores to advantages, on the controller.

Consumes a batch with scores and log-probs; adds `token_level_rewards` (scores, less the KL to the reference where it
is in the reward), `advantages` and `returns`. Which estimator does it is the configuration's choice; this file names
none.
"""

from burnish.algorithms import advantages, losses
from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.kl import apply_kl_penalty, kl_controller
from burnish.config import PPOConfig
from burnish.config.algorithm import AlgorithmConfig
from burnish.config.needs import Needs
from burnish.protocol import DataProto


class Credit:
    """The estimator and the KL controller of a run. The controller's state is part of the checkpoint."""

    def __init__(self, config: AlgorithmConfig, needs: Needs):
        self.config = config
        self.needs = needs
        self.estimator = advantages.estimator(config.adv_estimator)
        self.controller = kl_controller(config.kl_ctrl)

    def __call__(self, batch: DataProto, metrics: dict[str, float]) -> DataProto:
        """Add the credit columns to the batch and what the KL did to the metrics."""
        columns = batch.batch
        rewards = columns["token_level_scores"]  # (B, R)
        if self.config.use_kl_in_reward:
            rewards, kl_metrics = apply_kl_penalty(
                rewards,
                columns["old_log_probs"],
                columns["ref_log_prob"],
                columns["response_mask"],
                self.config.kl_penalty,
                self.controller,
            )
            metrics.update(kl_metrics)
        inputs = AdvantageInputs(
            token_level_rewards=rewards,
            response_mask=columns["response_mask"],
            uids=batch.non_tensor_batch["uid"],
            config=self.config,
            values=columns["values"] if self.needs.critic else None,
            outputs={name: columns[name] for name in self.needs.outputs},
            old_log_probs=columns["old_log_probs"],
        )
        advantage, returns = self.estimator(inputs)
        credit = {"token_level_rewards": rewards, "advantages": advantage, "returns": returns}
        return batch.union(DataProto.from_dict(credit))


def needs_of(config: PPOConfig) -> Needs:
    """What the chosen estimator and loss ask of the run."""
    loss_mode = config.actor_rollout_ref.actor.policy_loss.loss_mode
    return advantages.needs_of(config.algorithm.adv_estimator) | losses.needs_of(loss_mode)
