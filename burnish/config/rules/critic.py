"""The critic: there where the estimator needs one, and reported as unused where it does not."""

from burnish.config.ppo import PPOConfig
from burnish.config.rules.given import Given
from burnish.errors import ConfigError


def critic(config: PPOConfig, given: Given) -> None:
    """Switch the critic on or off and give it the actor's model where it has none."""
    section, estimator = config.critic, config.algorithm.adv_estimator
    if given.needs.critic and section.enable is False:
        raise ConfigError(f"critic.enable=false: algorithm.adv_estimator={estimator} needs a critic; leave it out")
    section.enable = given.needs.critic
    if section.model.path is None:
        section.model.path = config.actor_rollout_ref.model.path
    if section.enable:
        return
    given.unused(f"algorithm.adv_estimator={estimator} has no critic", *given.below("critic"))
    if config.trainer.critic_warmup:
        raise ConfigError(
            f"trainer.critic_warmup={config.trainer.critic_warmup}: algorithm.adv_estimator={estimator} has no critic, "
            "so these steps would train nothing; leave it out"
        )
