"""Agents: which loop rows run by default, and what does not go with training on text that the policy did not write."""

from burnish.config.bounds import SECTION as CORRECTION
from burnish.config.ppo import PPOConfig
from burnish.config.rollout import BaseRolloutConfig
from burnish.config.rules.correction import CORRECTING
from burnish.config.rules.given import Given
from burnish.errors import ConfigError

ROLLOUT = "actor_rollout_ref.rollout"
STATE_MASKING = "actor_rollout_ref.actor.state_masking"


def agents(config: PPOConfig, given: Given) -> None:
    """Runs before the correction is read."""
    rollout = config.actor_rollout_ref.rollout
    default_loop(rollout, ROLLOUT, given, do_search=config.do_search)
    if config.actor_rollout_ref.actor.state_masking:
        return
    if reader := _reads_log_probs(config, given):
        raise ConfigError(
            f"{STATE_MASKING}=false trains on text that the rollout engine did not sample, for which there are no "
            f"rollout log-probs; leave out {reader}"
        )
    rollout.calculate_log_probs = False
    given.say(
        f"warning: {STATE_MASKING}=false: what was retrieved and what tools said is trained on as if the policy had "
        f"written it; {ROLLOUT}.calculate_log_probs=false with it"
    )


def _reads_log_probs(config: PPOConfig, given: Given) -> str | None:
    """The keys that ask for the log-probs of the rollout."""
    correction, log_probs = config.algorithm.rollout_correction, f"{ROLLOUT}.calculate_log_probs"
    if correction.rollout_is or correction.rollout_rs or correction.bypass_mode or correction.mode in CORRECTING:
        return f"the keys of {CORRECTION}, which reads them"
    return f"{log_probs}=true" if config.actor_rollout_ref.rollout.calculate_log_probs and log_probs in given else None


def default_loop(rollout: BaseRolloutConfig, section: str, given: Given, *, do_search: bool = False) -> None:
    """`do_search` and `multi_turn.enable` name the loop of rows that name none."""
    key, enable = f"{section}.agent.default_agent_loop", f"{section}.multi_turn.enable"
    asked = {"do_search": "search_agent"} if do_search else {}
    asked |= {enable: "tool_agent"} if rollout.multi_turn.enable else {}
    if len(asked) > 1 and key not in given:
        raise ConfigError(f"do_search=true and {enable}=true name different agents; keep one of them, or set {key}")
    for switch, loop in asked.items():
        if key not in given:
            rollout.agent.default_agent_loop = loop
            given.say(f"{key}={loop}, because {switch}=true")
        elif rollout.agent.default_agent_loop.removesuffix("_loop") != loop:
            given.say(f"{switch}=true has no effect: {key}={rollout.agent.default_agent_loop}")
