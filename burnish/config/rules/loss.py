"""The loss and the reward: KL terms that a coefficient switches on, clip ranges, and numbers that nobody reads."""

from typing import Any

from burnish.config.algorithm import USED_BY
from burnish.config.ppo import PPOConfig
from burnish.config.rules.given import Given
from burnish.errors import ConfigError

ACTOR = "actor_rollout_ref.actor"


def kl_terms(config: PPOConfig, given: Given) -> None:
    """A KL coefficient that was set switches its term on; with the term explicitly off it is an error."""
    algorithm, actor = config.algorithm, config.actor_rollout_ref.actor
    _switch(given, algorithm, "algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef", algorithm.kl_ctrl.kl_coef)
    _switch(given, actor, f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef", actor.kl_loss_coef)
    if not algorithm.use_kl_in_reward:
        _unused(given, "there is no KL term in the reward", "algorithm.kl_penalty", *given.below("algorithm.kl_ctrl"))
    if not actor.use_kl_loss:
        _unused(given, "there is no KL term in the loss", f"{ACTOR}.kl_loss_type", f"{ACTOR}.kl_loss_coef")


def _switch(given: Given, section: Any, switch: str, coefficient: str, value: float) -> None:
    name = switch.rpartition(".")[2]
    if coefficient not in given or value == 0 or getattr(section, name):
        return
    if switch in given:
        raise ConfigError(
            f"{coefficient}={value:g} with {switch}=false: the coefficient would do nothing; drop one of the two"
        )
    setattr(section, name, True)
    given.say(f"{switch}=true, because {coefficient}={value:g} is set")


def clip_range(config: PPOConfig, given: Given) -> None:
    """Both sides of the clip range; each is `clip_ratio` unless it was set."""
    actor = config.actor_rollout_ref.actor
    if actor.clip_ratio_low is None:
        actor.clip_ratio_low = actor.clip_ratio
    if actor.clip_ratio_high is None:
        actor.clip_ratio_high = actor.clip_ratio
    if f"{ACTOR}.clip_ratio_low" in given and f"{ACTOR}.clip_ratio_high" in given:
        _unused(given, "clip_ratio_low and clip_ratio_high are both set", f"{ACTOR}.clip_ratio")
    if actor.loss_agg_mode != "seq-mean-token-sum-norm":
        _unused(
            given, f"{ACTOR}.loss_agg_mode={actor.loss_agg_mode} does not divide by it", f"{ACTOR}.loss_scale_factor"
        )


def estimator_keys(config: PPOConfig, given: Given) -> None:
    """Numbers of estimators that were not chosen are reported as unused."""
    chosen = config.algorithm.adv_estimator
    if any(chosen in estimators for estimators in USED_BY.values()):
        unused = [name for name, estimators in USED_BY.items() if chosen not in estimators]
        _unused(given, f"algorithm.adv_estimator={chosen} does not read it", *unused)


def _unused(given: Given, reason: str, *names: str) -> None:
    if there := [name for name in names if name in given]:
        given.say(f"unused: {', '.join(there)} ({reason})")
