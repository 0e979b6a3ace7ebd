"""The gap between rollout and training: generation that runs ahead, bounds that can be read, and settings that would
undo or repeat one another."""

from burnish.config.algorithm import RolloutCorrectionConfig
from burnish.config.bounds import SECTION, rejections, weight_bounds
from burnish.config.engines import engine_spec
from burnish.config.ppo import PPOConfig
from burnish.config.rules import Given, at_default
from burnish.config.values import show
from burnish.errors import ConfigError, NotAvailable

MODE, BYPASS, LOSS_TYPE = f"{SECTION}.mode", f"{SECTION}.bypass_mode", f"{SECTION}.loss_type"
THRESHOLD = f"{SECTION}.gap_threshold"
LOSS_MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"
ROLLOUT = "actor_rollout_ref.rollout"
LOG_PROBS, FREES = f"{ROLLOUT}.calculate_log_probs", f"{ROLLOUT}.free_cache_engine"
AHEAD = "trainer.async_rollout"
STALENESS = f"{AHEAD}.staleness"
CORRECTING = ("on", "auto")
LOSS_OF = {"ppo_clip": "vanilla", "reinforce": "reinforce"}


def run_ahead(config: PPOConfig, given: Given) -> None:
    """Runs before the correction is read, which is on where trajectories are older than the policy they train."""
    ahead, rollout = config.trainer.async_rollout, config.actor_rollout_ref.rollout
    if not ahead.enable:
        given.off(AHEAD)
        return
    if not ahead.staleness:
        given.say(f"{AHEAD}.enable=true with {STALENESS}=0 is the synchronous loop; {STALENESS}=1 runs ahead")
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


def correction(config: PPOConfig, given: Given) -> None:
    """A correction that was asked for is on, has bounds, and corrects what nothing else corrects."""
    section = config.algorithm.rollout_correction
    _loss(config, given)
    _switch_on(section, given)
    if section.bypass_mode:
        _bypass(config, given)
    if section.mode in CORRECTING and not (section.rollout_is or section.rollout_rs):
        section.rollout_is = "token"
        given.say(f"{SECTION}.rollout_is=token, because {MODE}={section.mode} and no correction was chosen")
    if section.rollout_is:
        weight_bounds(section)
    rejections(section)
    corrects, measures = section.mode in CORRECTING, config.actor_rollout_ref.rollout.calculate_log_probs
    if (corrects or section.bypass_mode) and not measures:
        reader = f"{MODE}={section.mode}" if corrects else f"{BYPASS}=true"
        raise ConfigError(f"{LOG_PROBS}=false: {reader} reads the log-probs of the rollout; leave it out")
    for switch, names in (("rollout_is", ("_threshold", "_batch_normalize")), ("rollout_rs", ("_threshold",))):
        if not getattr(section, switch):
            given.unused(f"{SECTION}.{switch} is not set", *(f"{SECTION}.{switch}{name}" for name in names))
    if section.mode in ("on", "off"):
        given.unused(f"{MODE}={section.mode} compares the gap with nothing", THRESHOLD)
    elif not measures:
        given.unused(f"{LOG_PROBS}=false: there is no gap to measure", MODE, THRESHOLD)


def _switch_on(section: RolloutCorrectionConfig, given: Given) -> None:
    """A correction that was chosen switches itself on; with the mode set to something else it is an error."""
    for name in ("rollout_is", "rollout_rs"):
        chosen = getattr(section, name)
        if not chosen or section.mode in CORRECTING:
            continue
        asked = f"{SECTION}.{name}={show(chosen)}"
        if not at_default(section, "mode"):
            raise ConfigError(
                f"{asked} with {MODE}={section.mode}: the correction would do nothing; drop one of the two"
            )
        section.mode = "on"
        given.say(f"{MODE}=on, because {asked} is set")


def _loss(config: PPOConfig, given: Given) -> None:
    """`loss_type` is another name for two of the losses."""
    section, policy_loss = config.algorithm.rollout_correction, config.actor_rollout_ref.actor.policy_loss
    if section.loss_type is None:
        return
    loss = LOSS_OF[section.loss_type]
    if not section.bypass_mode:
        raise ConfigError(
            f"{LOSS_TYPE}={section.loss_type} says which loss {BYPASS} has, and that is off; set it to true, or choose "
            f"the loss with {LOSS_MODE}={loss}"
        )
    if policy_loss.loss_mode != loss and not at_default(policy_loss, "loss_mode"):
        raise ConfigError(
            f"{LOSS_TYPE}={section.loss_type} means {LOSS_MODE}={loss}, and that is set to "
            f"{policy_loss.loss_mode}; keep one"
        )
    if policy_loss.loss_mode != loss:
        policy_loss.loss_mode = loss
        given.say(f"{LOSS_MODE}={loss}, because {LOSS_TYPE}={section.loss_type} is set")


def _bypass(config: PPOConfig, given: Given) -> None:
    """Without a pass before the update there is neither a batch to compare with nor anything an estimator could ask."""
    section, loss = config.algorithm.rollout_correction, config.actor_rollout_ref.actor.policy_loss.loss_mode
    has_ratio = given.needs.ratio and section.loss_type != "reinforce"
    if section.mode == "auto":
        raise ConfigError(f"{MODE}=auto with {BYPASS}=true: the gap is measured in the update itself; use {MODE}=on")
    if has_ratio and section.rollout_is:
        raise ConfigError(
            f"{SECTION}.rollout_is={section.rollout_is} with {BYPASS}=true: the ratio of {LOSS_MODE}={loss} is the "
            f"importance weight already, and would count twice; drop rollout_is, or use {LOSS_TYPE}=reinforce"
        )
    if has_ratio and section.mode == "on" and not section.rollout_rs:
        raise ConfigError(
            f"{MODE}=on with {BYPASS}=true: the ratio of {LOSS_MODE}={loss} corrects the gap already, so there is "
            f"nothing else to switch on; set {SECTION}.rollout_rs, or leave the mode out"
        )
    if section.rollout_is_batch_normalize:
        raise ConfigError(
            f"{SECTION}.rollout_is_batch_normalize=true with {BYPASS}=true: a micro-batch does not know the batch's "
            "weights; drop one of the two"
        )
    if given.needs.outputs:
        raise ConfigError(
            f"{BYPASS}=true saves the pass that gives {', '.join(given.needs.outputs)}, which "
            f"algorithm.adv_estimator={config.algorithm.adv_estimator} needs; leave it out"
        )
