"""How responses are scored: one reward manager, limits that follow it, the place where programs run, the reward model's
keys."""

import math
import os
import re
from dataclasses import replace
from typing import Any

from burnish.config.build import complaint, convert_all, flatten
from burnish.config.generation import EvalConfig
from burnish.config.key import keys_of
from burnish.config.ppo import PPOConfig
from burnish.config.reward import (
    FUSION,
    LOCAL,
    CustomRewardFunctionConfig,
    NamedFunctionConfig,
    RewardConfig,
    SandboxConfig,
)
from burnish.config.rules import Given, at_default, fill
from burnish.config.values import show
from burnish.errors import ConfigError

SANDBOX = "reward_model.sandbox"
SERVER = "http://127.0.0.1:8080/run_code"
#: manager → processes that score, seconds for one score; every other manager has those of None.
LIMITS: dict[str | None, tuple[int, float]] = {None: (2, 30.0), "prime": (64, 300.0)}
FUNCTIONS, FUNCTION_NAME = "custom_reward_function.functions", re.compile(r"[A-Za-z_][\w-]*")
#: Names that stand for something else in the results of a sample.
TAKEN = ("score", "reward", "rule_score", "rm_score", "new_prompts")
#: Keys of `reward_model` that only a reward model reads.
OF_THE_MODEL = (
    "micro_batch_size_per_gpu", "use_dynamic_bsz", "forward_max_token_len_per_gpu", "max_length", "rule_weight",
    "model_weight",
)  # fmt: skip


def limits(reward: RewardConfig, manager: str | None = None) -> RewardConfig:
    """Fill what was left open by what the manager is for; returns the same section."""
    workers, seconds = LIMITS.get(manager, LIMITS[None])
    reward.num_workers = reward.num_workers or workers
    reward.timeout = reward.timeout or seconds
    return reward


def scoring(config: PPOConfig | EvalConfig, given: Given) -> None:
    """Limits and sandbox; for training also the reward model. Runs after the actor's batch sizes are known."""
    manager = None
    if isinstance(config, PPOConfig):
        manager = config.reward_manager.name or config.reward_model.reward_manager
        _reward_model(config, given)
    limits(config.reward, manager)
    _sandbox(config.reward_model.sandbox, given)


def rewards(config: PPOConfig, given: Given) -> None:
    custom, chosen = config.custom_reward_function, config.reward_manager
    custom.path = custom.path or None  # `custom_reward_function.path=` takes it back
    functions(custom, given)
    if custom.path is None and not at_default(custom, "name"):
        raise ConfigError(
            f"custom_reward_function.name={custom.name} without custom_reward_function.path: name the file it is in"
        )
    if chosen.source == "importlib":
        name = chosen.module.name or chosen.name
        if not chosen.module.path or not name:
            raise ConfigError("reward_manager.source=importlib needs reward_manager.module.path and .module.name")
    elif chosen.module.path:
        raise ConfigError("reward_manager.module names a class of yours: set reward_manager.source=importlib with it")
    elif chosen.name not in (None, config.reward_model.reward_manager) and not at_default(
        config.reward_model, "reward_manager"
    ):
        raise ConfigError(
            f"reward_manager.name={chosen.name} and reward_model.reward_manager={config.reward_model.reward_manager} "
            "are the same thing; keep one"
        )


def functions(custom: CustomRewardFunctionConfig, given: Given) -> None:
    """Of several functions, all fields of each, checked."""
    custom.path = custom.path or None  # `custom_reward_function.path=` takes it back
    for name in ("custom_reward_function.name", "custom_reward_function.reward_kwargs"):
        if custom.functions and name in given:
            raise ConfigError(f"{name} is for a single function, and {FUNCTIONS} has several; set it for each of them")
    for name, fields in custom.functions.items():
        custom.functions[name] = vars(_function(name, fields, custom.path))
    if custom.functions and not any(function["weight"] for function in custom.functions.values()):
        raise ConfigError(f"{FUNCTIONS}: all weights are 0, and so is every score; give one another weight")


def _function(name: str, fields: Any, path: str | None) -> NamedFunctionConfig:
    key = f"{FUNCTIONS}.{name}"
    if not FUNCTION_NAME.fullmatch(str(name)) or name in TAKEN:
        raise ConfigError(f"{key}: use letters, digits, _ and - in the name, and none of {', '.join(TAKEN)}")
    if not isinstance(fields, dict):
        raise ConfigError(f"{key}={show(fields)}: must be a mapping; set {key}.path and {key}.name")
    known = {f"{key}.{name}": replace(one, name=f"{key}.{name}") for name, one in keys_of(NamedFunctionConfig).items()}
    flat = flatten(fields, known, f"{key}.")
    if problems := [complaint(name, known) for name in flat if name not in known]:
        raise ConfigError("\n".join(problems))
    values = convert_all(flat, known)
    function = NamedFunctionConfig(**{name.removeprefix(f"{key}."): value for name, value in values.items()})
    fill(function, path=path, name=name)
    if not function.path:
        raise ConfigError(f"{key}.path is not set: name the file or module that the function is in")
    function.path = os.path.expanduser(function.path)
    return function


def _sandbox(sandbox: SandboxConfig, given: Given) -> None:
    sandbox.url = sandbox.url or None
    sandbox.backend = sandbox.backend or (FUSION if sandbox.url else LOCAL)
    if sandbox.backend == FUSION and not sandbox.url:
        raise ConfigError(f"{SANDBOX}.backend={FUSION} needs the address of the server, e.g. {SANDBOX}.url={SERVER}")
    if sandbox.backend == LOCAL and sandbox.url:
        raise ConfigError(
            f"{SANDBOX}.url={sandbox.url} with {SANDBOX}.backend={LOCAL}: programs run here or there; keep one"
        )
    if sandbox.url and not sandbox.url.startswith(("http://", "https://")):
        raise ConfigError(f"{SANDBOX}.url={sandbox.url}: must start with http:// or https://, e.g. {SERVER}")
    if sandbox.backend == FUSION:
        given.unused("programs run on the server, in its isolation", f"{SANDBOX}.allow_unsafe")


def _reward_model(config: PPOConfig, given: Given) -> None:
    section, actor = config.reward_model, config.actor_rollout_ref.actor
    fill(section, use_dynamic_bsz=actor.use_dynamic_bsz, forward_max_token_len_per_gpu=actor.ppo_max_token_len_per_gpu)
    if not section.enable:
        names = [f"reward_model.{name}" for name in OF_THE_MODEL]
        given.unused("reward_model.enable is false", *names, *given.below("reward_model.model"))
        return
    if not section.model.path:
        raise ConfigError(
            "reward_model.enable=true needs reward_model.model.path: a folder with a sequence or token classifier of "
            "one label, as `burnish rm` writes it"
        )
    for name in ("rule_weight", "model_weight"):
        if not math.isfinite(getattr(section, name)):
            raise ConfigError(f"reward_model.{name}={getattr(section, name)}: a weight is finite")
    given.unused("the reward model is not trained", "reward_model.model.enable_gradient_checkpointing")
    if not section.use_dynamic_bsz:
        reason = "reward_model.use_dynamic_bsz is false, so passes are cut by reward_model.micro_batch_size_per_gpu"
        given.unused(reason, "reward_model.forward_max_token_len_per_gpu")
    if section.use_dynamic_bsz and section.micro_batch_size_per_gpu is not None:
        given.cut_by_tokens("reward_model.micro_batch_size_per_gpu", "forward_max_token_len_per_gpu")
