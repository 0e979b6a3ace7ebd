"""Lengths and sampling, in training and in validation, and the penalty for responses near the limit."""

from burnish.config.ppo import PPOConfig
from burnish.config.rollout import ValKwargs
from burnish.config.rules.given import Given
from burnish.errors import ConfigError

ROLLOUT = "actor_rollout_ref.rollout"
VAL = f"{ROLLOUT}.val_kwargs"
OVERLONG = "algorithm.overlong_buffer"


def lengths(config: PPOConfig, given: Given) -> None:
    """`rollout.prompt_length` and `rollout.response_length` are other names for the lengths in `data`."""
    data, rollout = config.data, config.actor_rollout_ref.rollout
    for short in ("prompt_length", "response_length"):
        ours, theirs = f"data.max_{short}", f"{ROLLOUT}.{short}"
        mine, other = getattr(data, f"max_{short}"), getattr(rollout, short)
        if other is not None and other != mine:
            if ours in given:
                raise ConfigError(f"{ours}={mine} and {theirs}={other} are the same thing; keep one")
            setattr(data, f"max_{short}", other)
            given.say(f"{ours}={other}, from {theirs}")
        setattr(rollout, short, getattr(data, f"max_{short}"))
    longest = data.max_prompt_length + data.max_response_length
    if rollout.max_model_len is not None and rollout.max_model_len < longest:
        raise ConfigError(
            f"{ROLLOUT}.max_model_len={rollout.max_model_len} is less than data.max_prompt_length="
            f"{data.max_prompt_length} + data.max_response_length={data.max_response_length} = {longest}; "
            "raise it, or lower one of them"
        )
    if data.max_start_length is not None and data.max_start_length > data.max_prompt_length:
        given.say(
            f"data.max_start_length={data.max_start_length} has no effect: no prompt has more than "
            f"data.max_prompt_length={data.max_prompt_length}"
        )
    _overlong(config, given)


def _overlong(config: PPOConfig, given: Given) -> None:
    """The penalty needs a stretch to grow over, and keys of a penalty that is off are reported."""
    data, buffer = config.data, config.algorithm.overlong_buffer
    longest = data.response_limit
    if not buffer.enable:
        given.off(OVERLONG)
    elif not 0 < buffer.len <= longest:
        raise ConfigError(
            f"{OVERLONG}.len={buffer.len} with {OVERLONG}.enable=true: the penalty grows over the last tokens before "
            f"{data.response_limit_key}={longest}; set it to a number from 1 to {longest}"
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
    cut = [f"top_k={rollout.top_k}"] if rollout.top_k > 0 else []
    cut += [f"top_p={rollout.top_p:g}"] if rollout.top_p < 1 else []
    cut += [f"min_p={rollout.min_p:g}"] if rollout.min_p > 0 else []
    if cut and rollout.do_sample:
        given.say(
            f"warning: {ROLLOUT}.{', '.join(cut)} leaves unlikely tokens out while training, but log-probs are those "
            "of all tokens: what is trained is not quite what was sampled"
        )
    _validation(rollout.val_kwargs, rollout.temperature, given)


def _validation(val: ValKwargs, temperature: float, given: Given) -> None:
    """Greedy unless `do_sample`, which then needs a temperature."""
    val.top_k = val.top_k or -1
    if val.do_sample and val.temperature == 0:
        if f"{VAL}.temperature" in given:
            raise ConfigError(f"{VAL}.temperature=0 with {VAL}.do_sample=true: sampling needs more than 0")
        val.temperature = temperature
        given.say(f"{VAL}.temperature={temperature:g}, as in training, because {VAL}.do_sample=true")
    if val.do_sample:
        return
    if val.n > 1:
        raise ConfigError(f"{VAL}.n={val.n} gives equal responses without sampling; set {VAL}.do_sample=true")
    set_but_unused = [f"{VAL}.{name}" for name in ("temperature", "top_p", "top_k") if f"{VAL}.{name}" in given]
    if val.temperature > 0 or val.top_p < 1 or val.top_k > 0:
        given.say(f"no effect: {', '.join(set_but_unused)} ({VAL}.do_sample=false takes the likeliest token)")
