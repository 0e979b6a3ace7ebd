"""verl's algorithms: burnish's estimators and losses with verl's signatures, and users' functions for its trainer.

`@register_adv_est("name")` and `@register_policy_loss("name")` make a function with verl's keyword signature one that
the keys `algorithm.adv_estimator` and `actor_rollout_ref.actor.policy_loss.loss_mode` can name, once its module is
imported (`actor_rollout_ref.model.external_lib`). It gets the arguments that it names.

A policy loss is called with a micro-batch and returns its mean, as in verl; here it is weighted by the micro-batch's
share of the mini-batch's tokens (or sequences, as `loss_agg_mode` says), so that cutting changes nothing.
"""

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from enum import Enum, StrEnum
from typing import Any, TypeVar

import numpy as np
import torch

from burnish.algorithms import advantages, kl, losses
from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.aggregate import LossCounts, aggregate
from burnish.algorithms.kl import KLController
from burnish.algorithms.losses.inputs import PolicyLossInputs, ValueLossInputs
from burnish.algorithms.losses.value import value_loss
from burnish.algorithms.masked import zero_outside
from burnish.algorithms.tally import Metrics, part_of_mean
from burnish.config.actor import ActorConfig, CriticConfig
from burnish.config.algorithm import AlgorithmConfig, KLControlConfig
from burnish.config.needs import Needs
from verl.tools.base_tool import taken
from verl.utils.torch_functional import entropy_from_logits

Function = TypeVar("Function", bound=Callable[..., Any])
Pair = tuple[torch.Tensor, torch.Tensor]

AdvantageEstimator = StrEnum("AdvantageEstimator", {name.upper(): name for name in advantages.TABLE.entries})  # type: ignore[misc]
#: The functions with verl's signature: those of users and, below, burnish's own.
ADV_ESTIMATOR_REGISTRY: dict[str, Callable[..., Pair]] = {}
POLICY_LOSS_REGISTRY: dict[str, Callable[..., Any]] = {}

_LENGTH: ContextVar[float | None] = ContextVar("_LENGTH", default=None)  # the constant of seq-mean-token-sum-norm


def _requires(function: Callable[..., Any], name: str) -> bool:
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.default is parameter.empty


def register_adv_est(name_or_enum: str | Enum) -> Callable[[Function], Function]:
    """Decorator: the run provides what the function requires: groups for `index`, a critic for `values`, greedy answers
    for `reward_baselines`."""
    name = str(name_or_enum.value if isinstance(name_or_enum, Enum) else name_or_enum)

    def register(function: Function) -> Function:
        @functools.wraps(function)
        def estimator(inputs: AdvantageInputs) -> Pair:
            offered = {
                "token_level_rewards": zero_outside(inputs.token_level_rewards, inputs.response_mask),
                "response_mask": inputs.response_mask,
                "index": inputs.uids,
                "config": inputs.config,
                "values": inputs.values,
                "reward_baselines": inputs.reward_baselines,
                "old_log_probs": inputs.old_log_probs,
                "rollout_is_weights": inputs.rollout_is_weights,
            }
            there = {key: value for key, value in offered.items() if value is not None}
            pair: Pair = function(**taken(function, **there))
            return pair

        needs = Needs(
            critic=_requires(function, "values"),
            groups=_requires(function, "index"),
            greedy_baseline=_requires(function, "reward_baselines"),
        )
        advantages.register_adv_est(name, needs)(estimator)
        ADV_ESTIMATOR_REGISTRY[name] = function
        return function

    return register


def get_adv_estimator_fn(name_or_enum: str | Enum) -> Callable[..., Pair]:
    name = str(name_or_enum.value if isinstance(name_or_enum, Enum) else name_or_enum)
    return _registered(ADV_ESTIMATOR_REGISTRY, name, "advantage estimator")


def _registered(registry: Mapping[str, Callable[..., Any]], name: str, what: str) -> Callable[..., Any]:
    if name not in registry:
        raise ValueError(f"{name!r} is no {what} with verl's signature; there are {', '.join(sorted(registry))}")
    return registry[name]


def register_policy_loss(name: str) -> Callable[[Function], Function]:
    """Decorator for a function that returns (loss, metrics), or (loss, clipfrac, kl, lower clipfrac)."""

    def register(function: Function) -> Function:
        @functools.wraps(function)
        def policy_loss(inputs: PolicyLossInputs) -> tuple[torch.Tensor, Metrics]:
            mask, config = inputs.response_mask, copy.copy(inputs.config)
            counts, length = LossCounts.of(mask), float(config.loss_scale_factor or inputs.max_response_length)
            micro = {"dp_size": 1, "batch_num_tokens": counts.tokens, "global_batch_size": counts.sequences}
            vars(config)["global_batch_info"] = {**micro, "loss_scale_factor": length}
            offered = {
                "old_log_prob": zero_outside(inputs.old_log_prob, mask),
                "log_prob": inputs.policy_log_prob,
                "advantages": inputs.advantages,
                "response_mask": mask,
                "loss_agg_mode": config.loss_agg_mode,
                "config": config,
                "rollout_is_weights": inputs.rollout_is_weights,
            }
            token = _LENGTH.set(length)
            try:
                result = function(**taken(function, **offered))
            finally:
                _LENGTH.reset(token)
            loss, *metrics = result if isinstance(result, tuple | list) else (result,)
            names = ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower")
            if metrics and isinstance(metrics[0], Mapping):
                named = metrics[0]
            else:
                named = dict(zip(names, metrics, strict=False))
            tallies = {key: _mean_of_tokens(value, counts.tokens) for key, value in named.items()}
            return loss * _share(config.loss_agg_mode, counts, inputs.counts), tallies

        losses.register_policy_loss(name)(policy_loss)
        POLICY_LOSS_REGISTRY[name] = function
        return function

    return register


def _share(mode: str, part: LossCounts, whole: LossCounts) -> float:
    """The weight of a micro-batch's mean in that of the mini-batch."""
    if mode == "token-sum":
        return 1.0
    counted = (part.tokens, whole.tokens) if mode == "token-mean" else (part.sequences, whole.sequences)
    return counted[0] / max(counted[1], 1)


def _mean_of_tokens(value: Any, tokens: int) -> Any:
    """A number as a part of the mini-batch's mean; anything else as it is, which the run refuses by name."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
    return part_of_mean(value * tokens, tokens) if isinstance(value, int | float | torch.Tensor) else value


def get_policy_loss_fn(name: str) -> Callable[..., Any]:
    return _registered(POLICY_LOSS_REGISTRY, name, "policy loss")


def agg_loss(
    loss_mat: torch.Tensor,
    loss_mask: torch.Tensor,
    loss_agg_mode: str,
    dp_size: int = 1,
    batch_num_tokens: int | None = None,
    global_batch_size: int | None = None,
    loss_scale_factor: float | None = None,
) -> torch.Tensor:
    """(B, R) → scalar, over the tokens and sequences of the mask unless their numbers are given."""
    here = LossCounts.of(loss_mask)
    counts = LossCounts(
        tokens=here.tokens if batch_num_tokens is None else int(batch_num_tokens),
        sequences=here.sequences if global_batch_size is None else int(global_batch_size),
    )
    length = loss_scale_factor or _LENGTH.get() or loss_mask.shape[-1]
    return dp_size * aggregate(loss_mat, loss_mask, loss_agg_mode, counts, length)


# Estimators with verl's signatures.


def section_of(config: Any, cls: type) -> Any:
    """A section of burnish's configuration: `config` itself, or one with the keys that `config` has, which may be any
    mapping or object."""
    if isinstance(config, cls):
        return config
    section = cls()
    for item in fields(section):
        default = getattr(section, item.name)
        value = config.get(item.name) if hasattr(config, "get") else getattr(config, item.name, None)
        if value is not None:
            setattr(section, item.name, section_of(value, type(default)) if is_dataclass(default) else value)
    return section


def _advantages(
    name: str,
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Any = None,
    config: Any = None,
    **others: Any,
) -> Pair:
    tensors = {key: others.pop(key) for key in ("values", "reward_baselines") if key in others}
    inputs = AdvantageInputs(
        token_level_rewards,
        response_mask,
        uids=np.arange(len(token_level_rewards)) if index is None else np.asarray(index),
        config=replace(section_of(config, AlgorithmConfig), **others),
        **tensors,
    )
    with torch.no_grad():
        pair: Pair = advantages.estimator(name)(inputs)
    return pair


def compute_gae_advantage_return(
    token_level_rewards: torch.Tensor, values: torch.Tensor, response_mask: torch.Tensor, gamma: float, lam: float
) -> Pair:
    return _advantages("gae", token_level_rewards, response_mask, values=values, gamma=float(gamma), lam=float(lam))


def _of_groups(name: str) -> Callable[..., Pair]:
    def compute(
        token_level_rewards: torch.Tensor,
        response_mask: torch.Tensor,
        index: Any,
        epsilon: float = 1e-6,
        norm_adv_by_std_in_grpo: bool = True,
        config: Any = None,
        **kwargs: Any,
    ) -> Pair:
        by_std = {"norm_adv_by_std_in_grpo": norm_adv_by_std_in_grpo}
        return _advantages(name, token_level_rewards, response_mask, index, config, **by_std)

    return compute


compute_grpo_outcome_advantage = _of_groups("grpo")
compute_grpo_passk_outcome_advantage = _of_groups("grpo_passk")
compute_rloo_outcome_advantage = _of_groups("rloo")
compute_opo_outcome_advantage = _of_groups("opo")
compute_reinforce_plus_plus_baseline_outcome_advantage = _of_groups("reinforce_plus_plus_baseline")


def compute_reinforce_plus_plus_outcome_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, config: Any = None, **kwargs: Any
) -> Pair:
    return _advantages("reinforce_plus_plus", token_level_rewards, response_mask, config=config)


def compute_remax_outcome_advantage(
    token_level_rewards: torch.Tensor,
    reward_baselines: torch.Tensor,
    response_mask: torch.Tensor,
    config: Any = None,
    **kwargs: Any,
) -> Pair:
    return _advantages("remax", token_level_rewards, response_mask, config=config, reward_baselines=reward_baselines)


ADV_ESTIMATOR_REGISTRY |= {
    "gae": compute_gae_advantage_return,
    "grpo": compute_grpo_outcome_advantage,
    "rloo": compute_rloo_outcome_advantage,
    "opo": compute_opo_outcome_advantage,
    "grpo_passk": compute_grpo_passk_outcome_advantage,
    "reinforce_plus_plus": compute_reinforce_plus_plus_outcome_advantage,
    "reinforce_plus_plus_baseline": compute_reinforce_plus_plus_baseline_outcome_advantage,
    "remax": compute_remax_outcome_advantage,
}


# Losses with verl's signatures.


def _policy_loss(name: str) -> Callable[..., tuple[torch.Tensor, dict[str, float]]]:
    def compute(
        old_log_prob: torch.Tensor,
        log_prob: torch.Tensor,
        advantages: torch.Tensor,
        response_mask: torch.Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        own = replace(section_of(config, ActorConfig), loss_agg_mode=loss_agg_mode)
        for bound in ("clip_ratio_low", "clip_ratio_high"):  # which a run derives from clip_ratio
            if getattr(own, bound) is None:
                setattr(own, bound, own.clip_ratio)
        inputs = PolicyLossInputs(
            old_log_prob,
            log_prob,
            advantages,
            response_mask,
            config=own,
            counts=LossCounts.of(response_mask),
            max_response_length=int(_LENGTH.get() or response_mask.shape[-1]),
            rollout_is_weights=rollout_is_weights,
        )
        loss, metrics = losses.policy_loss(name)(inputs)
        return loss, {key: tally.value for key, tally in metrics.items() if key != "actor/pg_loss"}

    compute.__name__ = compute.__qualname__ = f"compute_policy_loss_{name}"
    return compute


compute_policy_loss_vanilla = _policy_loss("vanilla")
compute_policy_loss_gspo = _policy_loss("gspo")
compute_policy_loss_gpg = _policy_loss("gpg")
compute_policy_loss_geo_mean = _policy_loss("geo_mean")
compute_policy_loss_cispo = _policy_loss("cispo")
compute_policy_loss_sapo = _policy_loss("sapo")

POLICY_LOSS_REGISTRY |= {
    "vanilla": compute_policy_loss_vanilla,
    "gspo": compute_policy_loss_gspo,
    "gpg": compute_policy_loss_gpg,
    "geo_mean": compute_policy_loss_geo_mean,
    "cispo": compute_policy_loss_cispo,
    "sapo": compute_policy_loss_sapo,
}


def compute_policy_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    cliprange: float = 0.2,
    cliprange_low: float | None = None,
    cliprange_high: float | None = None,
    clip_ratio_c: float = 3.0,
    loss_agg_mode: str = "token-mean",
) -> tuple[torch.Tensor, float, float, float]:
    """PPO's loss as until verl 0.5: (loss, clipfrac, kl, lower clipfrac)."""
    low, high = (cliprange if bound is None else bound for bound in (cliprange_low, cliprange_high))
    config = {"clip_ratio": cliprange, "clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": clip_ratio_c}
    batch = old_log_prob, log_prob, advantages, response_mask
    loss, metrics = compute_policy_loss_vanilla(*batch, loss_agg_mode, config)
    return loss, metrics["actor/pg_clipfrac"], metrics["actor/ppo_kl"], metrics["actor/pg_clipfrac_lower"]


def compute_value_loss(
    vpreds: torch.Tensor,
    returns: torch.Tensor,
    values: torch.Tensor,
    response_mask: torch.Tensor,
    cliprange_value: float,
    loss_agg_mode: str = "token-mean",
) -> tuple[torch.Tensor, float]:
    """(loss, clipfrac)"""
    config = CriticConfig(cliprange_value=cliprange_value, loss_agg_mode=loss_agg_mode)
    counts, width = LossCounts.of(response_mask), response_mask.shape[-1]
    loss, metrics = value_loss(ValueLossInputs(vpreds, values, returns, response_mask, config, counts, width))
    return loss, metrics["critic/vf_clipfrac"].value


def compute_entropy_loss(
    logits: torch.Tensor, response_mask: torch.Tensor, loss_agg_mode: str = "token-mean"
) -> torch.Tensor:
    return agg_loss(entropy_from_logits(logits), response_mask, loss_agg_mode)


# KL.


def kl_penalty(logprob: torch.Tensor, ref_logprob: torch.Tensor, kl_penalty: str) -> torch.Tensor:
    return kl.kl_penalty(logprob, ref_logprob, kl_penalty)


def compute_rewards(
    token_level_scores: torch.Tensor, old_log_prob: torch.Tensor, ref_log_prob: torch.Tensor, kl_ratio: float
) -> torch.Tensor:
    return token_level_scores - (old_log_prob - ref_log_prob) * kl_ratio


class AdaptiveKLController(KLController):
    def __init__(self, init_kl_coef: float, target_kl: float, horizon: float):
        super().__init__(init_kl_coef, target_kl, horizon)


class FixedKLController(KLController):
    def __init__(self, kl_coef: float):
        super().__init__(kl_coef)


def get_kl_controller(kl_ctrl: Any) -> KLController:
    return kl.kl_controller(section_of(kl_ctrl, KLControlConfig))
