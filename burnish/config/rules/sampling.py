"""Lengths, sampling and agent loops, in training, validation and `burnish generate`; the penalty for responses near the
limit; and what does not go with training on text that the policy did not write."""

from collections.abc import Mapping
from typing import Any

from burnish.config.bounds import SECTION as CORRECTION
from burnish.config.generation import GenerationConfig
from burnish.config.ppo import PPOConfig
from burnish.config.rollout import BaseRolloutConfig
from burnish.config.rules import Given, at_default
from burnish.config.rules.correction import CORRECTING
from burnish.errors import ConfigError

ROLLOUT = "actor_rollout_ref.rollout"
VAL = f"{ROLLOUT}.val_kwargs"
OVERLONG = "algorithm.overlong_buffer"
STATE_MASKING = "actor_rollout_ref.actor.state_masking"


def lengths(config: PPOConfig, given: Given) -> None:
    """`rollout.prompt_length` and `rollout.response_length` are other names for the lengths in `data`."""
    data, rollout = config.data, config.actor_rollout_ref.rollout
    for short in ("prompt_length", "response_length"):
        ours, theirs = f"data.max_{short}", f"{ROLLOUT}.{short}"
        mine, other = getattr(data, f"max_{short}"), getattr(rollout, short)
        if other is not None and other != mine:
            if not at_default(data, f"max_{short}"):
                raise ConfigError(f"{ours}={mine} and {theirs}={other} are the same thing; keep one")
            setattr(data, f"max_{short}", other)
            given.say(f"{ours}={other}, from {theirs}")
        setattr(rollout, short, getattr(data, f"max_{short}"))
    limits = {"data.max_prompt_length": data.max_prompt_length, "data.max_response_length": data.max_response_length}
    _check_context(ROLLOUT, rollout.max_model_len, limits)
    if data.max_start_length is not None and data.max_start_length > data.max_prompt_length:
        given.say(
            f"data.max_start_length={data.max_start_length} has no effect: no prompt has more than "
            f"data.max_prompt_length={data.max_prompt_length}"
        )
    buffer, longest = config.algorithm.overlong_buffer, data.response_limit
    if not buffer.enable:
        given.off(OVERLONG)
    elif not 0 < buffer.len <= longest:
        raise ConfigError(
            f"{OVERLONG}.len={buffer.len} with {OVERLONG}.enable=true: the penalty grows over the last tokens before "
            f"{data.response_limit_key}={longest}; set it to a number from 1 to {longest}"
        )


def _check_context(section: str, room: int | None, limits: Mapping[str, int]) -> None:
    longest = sum(limits.values())
    if room is not None and room < longest:
        words = " + ".join(f"{key}={value}" for key, value in limits.items())
        raise ConfigError(
            f"{section}.max_model_len={room} is less than {words} = {longest}; raise it, or lower one of them"
        )


def sampling(config: PPOConfig, given: Given) -> None:
    """Training samples from the policy itself; what leaves tokens out is allowed and warned about."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.do_sample and rollout.temperature == 0:
        raise ConfigError(
            f"{ROLLOUT}.temperature=0: sampling needs more than 0; {ROLLOUT}.do_sample=false takes the likeliest token"
        )
    if given.needs.greedy_baseline and not rollout.do_sample:
        raise ConfigError(
            f"{ROLLOUT}.do_sample=false: every response is the greedy one that algorithm.adv_estimator="
            f"{config.algorithm.adv_estimator} compares it with, so there is nothing to learn; leave it out"
        )
    if rollout.n > 1 and not rollout.do_sample:
        raise ConfigError(
            f"{ROLLOUT}.n={rollout.n} gives equal responses without sampling; leave out {ROLLOUT}.n or "
            f"{ROLLOUT}.do_sample=false"
        )
    rollout.top_k = rollout.top_k or -1
    if (cut := _narrows(rollout, ("top_k", "top_p", "min_p"))) and rollout.do_sample:
        words = ", ".join(f"{name}={getattr(rollout, name):g}" for name in cut)
        given.say(
            f"warning: {ROLLOUT}.{words} excludes unlikely tokens while training, but log-probs are those of all "
            "tokens: training and sampling distributions differ slightly"
        )
    val = rollout.val_kwargs
    val.top_k = val.top_k or -1
    if val.do_sample and val.temperature == 0:
        val.temperature = rollout.temperature
        given.say(f"{VAL}.temperature={rollout.temperature:g}, as in training, because {VAL}.do_sample=true")
    if not val.do_sample and val.n > 1:
        raise ConfigError(f"{VAL}.n={val.n} gives equal responses without sampling; set {VAL}.do_sample=true")
    if not val.do_sample and _narrows(val, names := ("temperature", "top_p", "top_k")):
        _report_greedy(VAL, names, given)


def generation(config: GenerationConfig, given: Given) -> None:
    """Of `burnish generate`. Temperature 0 and `do_sample=false` both take the likeliest token, which gives one
    response."""
    rollout, n = config.rollout, config.data.n_samples
    if rollout.n not in (1, n):
        raise ConfigError(
            f"rollout.n={rollout.n}: responses per prompt are data.n_samples here; use data.n_samples={rollout.n} "
            "(burnish ppo: actor_rollout_ref.rollout.n)"
        )
    limits = {f"rollout.{name}": getattr(rollout, name) for name in ("prompt_length", "response_length")}
    _check_context("rollout", rollout.max_model_len, limits)
    rollout.top_k = rollout.top_k or -1
    if rollout.do_sample and rollout.temperature == 0:
        rollout.do_sample = False
        given.say("rollout.do_sample=false, because rollout.temperature=0")
    if rollout.do_sample:
        return
    if n > 1:
        raise ConfigError(
            f"data.n_samples={n} gives equal responses without sampling; set data.n_samples=1, or sample with "
            "rollout.do_sample=true and a rollout.temperature of more than 0"
        )
    _report_greedy("rollout", _narrows(rollout, ("temperature", "top_p", "top_k", "min_p")), given)


def _narrows(sampling: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    values = {name: getattr(sampling, name) for name in names}
    return tuple(name for name, value in values.items() if (value < 1 if name == "top_p" else value > 0))


def _report_greedy(section: str, names: tuple[str, ...], given: Given) -> None:
    there = [f"{section}.{name}" for name in names if f"{section}.{name}" in given]
    given.no_effect(f"{section}.do_sample=false takes the likeliest token", *there)


def agents(config: PPOConfig, given: Given) -> None:
    """Runs before the correction is read."""
    rollout = config.actor_rollout_ref.rollout
    default_loop(rollout, ROLLOUT, given, do_search=config.do_search)
    if config.actor_rollout_ref.actor.state_masking:
        return
    correction = config.algorithm.rollout_correction
    if correction.rollout_is or correction.rollout_rs or correction.bypass_mode or correction.mode in CORRECTING:
        raise ConfigError(
            f"{STATE_MASKING}=false trains on text that the rollout engine did not sample, for which there are no "
            f"rollout log-probs; leave out the keys of {CORRECTION}, which reads them"
        )
    rollout.calculate_log_probs = False
    given.say(
        f"warning: {STATE_MASKING}=false: what was retrieved and what tools said is trained on as if the policy had "
        f"written it; {ROLLOUT}.calculate_log_probs=false with it"
    )


def default_loop(rollout: BaseRolloutConfig, section: str, given: Given, *, do_search: bool = False) -> None:
    """`do_search` and `multi_turn.enable` name the loop of rows that name none."""
    key, enable = f"{section}.agent.default_agent_loop", f"{section}.multi_turn.enable"
    asked = {"do_search": "search_agent"} if do_search else {}
    asked |= {enable: "tool_agent"} if rollout.multi_turn.enable else {}
    is_open = at_default(rollout.agent, "default_agent_loop")
    if len(asked) > 1 and is_open:
        raise ConfigError(f"do_search=true and {enable}=true name different agents; keep one of them, or set {key}")
    for switch, loop in asked.items():
        if is_open:
            rollout.agent.default_agent_loop = loop
            given.say(f"{key}={loop}, because {switch}=true")
        elif rollout.agent.default_agent_loop.removesuffix("_loop") != loop:
            given.say(f"{switch}=true has no effect: {key}={rollout.agent.default_agent_loop}")
