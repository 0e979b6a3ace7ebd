"""What a run's algorithm asks of it, from the tables of estimators and losses; known before torch is imported."""

from dataclasses import replace

from burnish.algorithms import advantages, losses
from burnish.config.needs import Needs
from burnish.config.ppo import PPOConfig


def needs_of(config: PPOConfig) -> Needs:
    """What the chosen estimator and loss ask of the run.

    `outputs` are those of the estimator: the log-prob pass gives them, and the update itself those of the loss.
    """
    estimator = advantages.needs_of(config.algorithm.adv_estimator)
    loss = losses.needs_of(config.actor_rollout_ref.actor.policy_loss.loss_mode)
    return replace(estimator | loss, outputs=estimator.outputs)
