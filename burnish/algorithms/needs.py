"""What a run's algorithm asks of it, from the tables of estimators and losses; known before torch is imported."""

from burnish.algorithms import advantages, losses
from burnish.config.needs import Needs
from burnish.config.ppo import PPOConfig


def needs_of(config: PPOConfig) -> Needs:
    """What the chosen estimator and loss ask of the run."""
    loss_mode = config.actor_rollout_ref.actor.policy_loss.loss_mode
    return advantages.needs_of(config.algorithm.adv_estimator) | losses.needs_of(loss_mode)
