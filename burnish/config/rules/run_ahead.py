"""Generation that runs ahead of training: what it needs, and what it does not go with."""

from burnish.config.bounds import SECTION as CORRECTION
from burnish.config.engines import engine_spec
from burnish.config.ppo import PPOConfig
from burnish.config.rules.correction import CORRECTING
from burnish.config.rules.given import Given
from burnish.errors import ConfigError, NotAvailable

SECTION = "trainer.async_rollout"
STALENESS, MODE = f"{SECTION}.staleness", f"{CORRECTION}.mode"
ROLLOUT = "actor_rollout_ref.rollout"
LOG_PROBS, FREES = f"{ROLLOUT}.calculate_log_probs", f"{ROLLOUT}.free_cache_engine"


def run_ahead(config: PPOConfig, given: Given) -> None:
    """Runs before the correction is read, which is on where trajectories are older than the policy they train."""
    ahead, rollout = config.trainer.async_rollout, config.actor_rollout_ref.rollout
    if not ahead.enable:
        given.off(SECTION)
        return
    if not ahead.staleness:
        given.say(f"{SECTION}.enable=true with {STALENESS}=0 is the synchronous loop; {STALENESS}=1 runs ahead")
        return
    asked = f"{STALENESS}={ahead.staleness}"
    if not engine_spec(rollout.name).in_flight_updates:
        raise ConfigError(
            f"{asked} with {ROLLOUT}.name={rollout.name}: this engine cannot take new weights while it generates; use "
            f"{ROLLOUT}.name=native"
        )
    if config.data.augment.enable:
        raise NotAvailable(
            f"data.augment.enable=true with {asked}",
            f"Prompts that trajectories propose join the stream when these are trained; set {STALENESS}=0",
        )
    if not rollout.calculate_log_probs:
        raise ConfigError(
            f"{asked} trains on tokens of older weights, and corrects for it with the log-probs they were sampled "
            f"with; leave out {LOG_PROBS}=false and what it follows from"
        )
    if config.trainer.deterministic:
        raise ConfigError(
            f"trainer.deterministic=true with {asked}: which weights sample a token depends on how long others take, "
            "so no two runs are the same; drop one of the two"
        )
    correction = config.algorithm.rollout_correction
    # With bypass_mode the ratio of a loss that has one is that to the weights that sampled.
    by_ratio = correction.bypass_mode and given.needs.ratio and correction.loss_type != "reinforce"
    if MODE not in given and not by_ratio:
        correction.mode = "on"
        given.say(f"{MODE}=on, because {asked} trains on tokens of older weights")
    elif correction.mode not in CORRECTING and not by_ratio:
        given.say(
            f"warning: {MODE}={correction.mode} with {asked}: tokens of older weights are trained on as if they were "
            f"of the newest; {MODE}=on corrects it"
        )
    if rollout.free_cache_engine:
        rollout.free_cache_engine = False
        if FREES in given:
            given.say(f"{FREES}=false, because {asked} generates while it trains")
