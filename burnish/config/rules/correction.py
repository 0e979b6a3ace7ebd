"""The gap between rollout and training: bounds that can be read, and settings that would undo or repeat one another."""

from burnish.config.algorithm import RolloutCorrectionConfig
from burnish.config.bounds import SECTION, rejections, weight_bounds
from burnish.config.ppo import PPOConfig
from burnish.config.rules.given import Given
from burnish.config.values import show
from burnish.errors import ConfigError

MODE, BYPASS, LOSS_TYPE = f"{SECTION}.mode", f"{SECTION}.bypass_mode", f"{SECTION}.loss_type"
THRESHOLD = f"{SECTION}.gap_threshold"
LOSS_MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"
LOG_PROBS = "actor_rollout_ref.rollout.calculate_log_probs"
CORRECTING = ("on", "auto")
LOSS_OF = {"ppo_clip": "vanilla", "reinforce": "reinforce"}


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
    _unused(section, measures, given)


def _switch_on(section: RolloutCorrectionConfig, given: Given) -> None:
    """A correction that was chosen switches itself on; with the mode set to something else it is an error."""
    for name in ("rollout_is", "rollout_rs"):
        chosen = getattr(section, name)
        if not chosen or section.mode in CORRECTING:
            continue
        asked = f"{SECTION}.{name}={show(chosen)}"
        if MODE in given:
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
    if LOSS_MODE in given and policy_loss.loss_mode != loss:
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


def _unused(section: RolloutCorrectionConfig, measures: bool, given: Given) -> None:
    """Keys without a correction, a threshold without a mode that looks at it, and a mode without a gap to look at."""
    keys = {
        "rollout_is": ("rollout_is_threshold", "rollout_is_batch_normalize"),
        "rollout_rs": ("rollout_rs_threshold",),
    }
    for switch, names in keys.items():
        if not getattr(section, switch):
            given.unused(f"{SECTION}.{switch} is not set", *(f"{SECTION}.{name}" for name in names))
    if section.mode in ("on", "off"):
        given.unused(f"{MODE}={section.mode} compares the gap with nothing", THRESHOLD)
    elif not measures:
        given.unused(f"{LOG_PROBS}=false: there is no gap to measure", MODE, THRESHOLD)
