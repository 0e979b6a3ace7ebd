"""The loss and the reward: KL terms that a coefficient switches on, clip ranges, and numbers that nobody reads."""

import math
from typing import Any

from burnish.config.actor import LOSSES, OWN_AGGREGATION, USED_BY_LOSS
from burnish.config.algorithm import ESTIMATORS, USED_BY
from burnish.config.ppo import PPOConfig
from burnish.config.rules import Given, at_default, fill
from burnish.errors import ConfigError

ACTOR = "actor_rollout_ref.actor"


def kl_terms(config: PPOConfig, given: Given) -> None:
    """A KL coefficient that was set switches its term on; with the term explicitly off it is an error. Keys that the
    switches of the algorithm leave unread, those of PF-PPO too, are reported."""
    algorithm, actor = config.algorithm, config.actor_rollout_ref.actor
    _switch(given, algorithm, "algorithm.use_kl_in_reward", algorithm.kl_ctrl, "algorithm.kl_ctrl.kl_coef")
    _switch(given, actor, f"{ACTOR}.use_kl_loss", actor, f"{ACTOR}.kl_loss_coef")
    if not algorithm.use_kl_in_reward:
        given.unused("there is no KL term in the reward", "algorithm.kl_penalty", *given.below("algorithm.kl_ctrl"))
    if not actor.use_kl_loss:
        given.unused("there is no KL term in the loss", f"{ACTOR}.kl_loss_type", f"{ACTOR}.kl_loss_coef")
    resampling, kl = "algorithm.pf_ppo", "algorithm.kl_ctrl"
    if not algorithm.pf_ppo.enable:
        given.off(resampling)
    elif algorithm.pf_ppo.reweight_method != "pow":
        reason = f"{resampling}.reweight_method={algorithm.pf_ppo.reweight_method} has no exponent"
        given.unused(reason, f"{resampling}.weight_pow")
    if algorithm.use_kl_in_reward and algorithm.kl_ctrl.type == "fixed":
        given.unused(f"{kl}.type is fixed", f"{kl}.target_kl", f"{kl}.horizon")


def _switch(given: Given, section: Any, switch: str, holder: Any, coefficient: str) -> None:
    name, key = switch.rpartition(".")[2], coefficient.rpartition(".")[2]
    value = getattr(holder, key)
    if coefficient not in given or value == 0 or getattr(section, name):
        return
    if switch in given:
        if at_default(holder, key):
            return
        raise ConfigError(
            f"{coefficient}={value:g} with {switch}=false: the coefficient would do nothing; drop one of the two"
        )
    setattr(section, name, True)
    given.say(f"{switch}=true, because {coefficient}={value:g} is set")


def clip_range(config: PPOConfig, given: Given) -> None:
    """Both sides of the clip range; each is `clip_ratio` unless it was set."""
    actor = config.actor_rollout_ref.actor
    fill(actor, clip_ratio_low=actor.clip_ratio, clip_ratio_high=actor.clip_ratio)
    if f"{ACTOR}.clip_ratio_low" in given and f"{ACTOR}.clip_ratio_high" in given:
        given.unused("clip_ratio_low and clip_ratio_high are both set", f"{ACTOR}.clip_ratio")
    if actor.loss_agg_mode != "seq-mean-token-sum-norm":
        given.unused(f"{ACTOR}.loss_agg_mode={actor.loss_agg_mode} does not divide by it", f"{ACTOR}.loss_scale_factor")


def estimator_keys(config: PPOConfig, given: Given) -> None:
    """Numbers of estimators that were not chosen are reported as unused; reward components that are whole."""
    algorithm, chosen = config.algorithm, config.algorithm.adv_estimator
    if chosen in ESTIMATORS:  # what a user's own reads is theirs to know
        unused = [name for name, estimators in USED_BY.items() if chosen not in estimators]
        given.unused(f"algorithm.adv_estimator={chosen} does not read it", *unused)
    if not given.needs.reward_components:
        return
    if functions := config.custom_reward_function.functions:
        fill(algorithm, gdpo_reward_keys=list(functions))
        if algorithm.gdpo_reward_keys == list(functions):
            fill(algorithm, gdpo_reward_weights=[function["weight"] for function in functions.values()])
    names, weights = algorithm.gdpo_reward_keys, algorithm.gdpo_reward_weights
    if not names:
        if weights:
            raise ConfigError("algorithm.gdpo_reward_weights needs algorithm.gdpo_reward_keys: what do they weigh?")
        given.say(f"algorithm.gdpo_reward_keys is not set: {chosen} is given no components, only the score")
        return
    if len(set(names)) < len(names):
        raise ConfigError(f"algorithm.gdpo_reward_keys={names} names one twice; weigh it with gdpo_reward_weights")
    if weights is not None and not (any(weights) and all(map(math.isfinite, weights))):
        raise ConfigError(f"algorithm.gdpo_reward_weights={weights}: weights are finite and not all 0")
    if weights is not None and len(weights) != len(names):
        raise ConfigError(
            f"algorithm.gdpo_reward_weights has {len(weights)} weights for the {len(names)} of "
            "algorithm.gdpo_reward_keys; give one for each"
        )
    if algorithm.overlong_buffer.enable and "overlong_reward" not in names:
        raise ConfigError(
            f"algorithm.overlong_buffer with algorithm.gdpo_reward_keys={names}: {chosen} reads these components, and "
            "the penalty is in none of them; name it too, as overlong_reward"
        )
    if algorithm.use_kl_in_reward:
        raise ConfigError(
            f"algorithm.use_kl_in_reward with algorithm.gdpo_reward_keys: {chosen} reads the components, and the KL "
            f"is in none of them; use {ACTOR}.use_kl_loss"
        )


def loss_keys(config: PPOConfig, given: Given) -> None:
    """Numbers of losses that were not chosen are reported as unused; bounds that are in order."""
    actor, chosen = config.actor_rollout_ref.actor, config.actor_rollout_ref.actor.policy_loss.loss_mode
    if chosen in LOSSES:
        unused = [f"{ACTOR}.{name}" for name, losses in USED_BY_LOSS.items() if chosen not in losses]
        given.unused(f"{ACTOR}.policy_loss.loss_mode={chosen} does not read it", *unused)
    if chosen in OWN_AGGREGATION and f"{ACTOR}.loss_agg_mode" in given:
        given.say(
            f"{ACTOR}.loss_agg_mode={actor.loss_agg_mode} is for entropy and KL terms only: the policy loss {chosen} "
            f"is always {OWN_AGGREGATION[chosen]}"
        )
    bounds = actor.policy_loss
    if chosen == "clip_cov" and bounds.clip_cov_lb >= bounds.clip_cov_ub:
        raise ConfigError(
            f"{ACTOR}.policy_loss.clip_cov_lb={bounds.clip_cov_lb:g} is not below clip_cov_ub={bounds.clip_cov_ub:g}: "
            "no token is between them"
        )
