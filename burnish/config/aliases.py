"""Other spellings of keys that users bring from elsewhere. Each is accepted, rewritten, and reported once.

An entry maps the other spelling to the key of ours, or to a function `(value, given) -> {key: value}` where the value
decides; `given` holds everything else that was set. A function may hand back the key itself: then nothing is rewritten.
"""

from collections.abc import Callable, Mapping
from typing import Any

Rewrite = Callable[[Any, Mapping[str, Any]], dict[str, Any]]

POLICY, ACTOR, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MULTI_TURN = f"{ROLLOUT}.multi_turn"
DEFAULT_LORA_RANK = 16
SHOWN_GENERATIONS = 10


def _kl_penalty(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """A number is a coefficient; a name is the kind of estimate."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"algorithm.kl_ctrl.kl_coef" if is_number else "algorithm.kl_penalty": value}


def _agent_loop(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """`tool_agent_loop` is the loop `tool_agent`; other names stay as they are."""
    name = value.removesuffix("_loop") if isinstance(value, str) and value.endswith("_agent_loop") else value
    return {f"{ROLLOUT}.agent.default_agent_loop": name}


def _lora_enable(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Switched on alone it means rank 16; a rank set with it is used."""
    rank = given.get(f"{ACTOR}.lora.r", given.get(f"{POLICY}.lora_rank", DEFAULT_LORA_RANK))
    return {f"{POLICY}.lora_rank": rank if value else 0}


def _lora_rank(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """A rank is used unless LoRA is switched off."""
    return {f"{POLICY}.lora_rank": value if given.get(f"{ACTOR}.lora.enable", True) else 0}


def _log_generations(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """A switch becomes a number of samples."""
    count = (SHOWN_GENERATIONS if value else 0) if isinstance(value, bool) else value
    return {"trainer.log_val_generations": count}


def _model_engine(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{ACTOR}.strategy": "fsdp" if value == "dp" else value}


def _under(old: str, new: str, names: str) -> dict[str, str | Rewrite]:
    """The same names below another section."""
    return {f"{old}.{name}": f"{new}.{name}" for name in names.split()}


ALIASES: dict[str, str | Rewrite] = {
    "algorithm.group_size": f"{ROLLOUT}.n",
    "algorithm.kl_penalty": _kl_penalty,
    "algorithm.use_pf_ppo": "algorithm.pf_ppo.enable",
    f"{ROLLOUT}.agent_loop": _agent_loop,
    "tool_config_path": f"{MULTI_TURN}.tool_config_path",
    "tool_config.max_tool_calls": f"{MULTI_TURN}.max_tool_calls",
    "tool_config.timeout": f"{MULTI_TURN}.tool_timeout",
    f"{MULTI_TURN}.max_turns": f"{MULTI_TURN}.max_assistant_turns",
    "sampling_params.max_tokens": "data.max_response_length",
    "sampling_params.timeout": f"{ROLLOUT}.timeout",
    f"{ACTOR}.lora.enable": _lora_enable,
    f"{ACTOR}.lora.r": _lora_rank,
    f"{ACTOR}.lora.lora_alpha": f"{POLICY}.lora_alpha",
    f"{ACTOR}.lora.target_modules": f"{POLICY}.target_modules",
    "reward_model.model_path": "reward_model.model.path",
    "reward_model.batch_size": "reward_model.micro_batch_size_per_gpu",
    "reward_model.micro_batch_size": "reward_model.micro_batch_size_per_gpu",
    **_under("reward_model.sandbox_fusion", "reward_model.sandbox", "url max_concurrent memory_limit_mb"),
    **_under("reward_model.overlong_buffer", "algorithm.overlong_buffer", "enable len penalty_factor"),
    **_under(
        "reward_model.reward_kwargs.overlong_buffer_cfg", "algorithm.overlong_buffer", "enable len penalty_factor"
    ),
    "trainer.run_name": "trainer.experiment_name",
    "trainer.log_generation_samples": _log_generations,
    "model_engine": _model_engine,
    "hybrid_engine": "actor_rollout_ref.hybrid_engine",
    f"{ACTOR}.ppo_micro_batch_size": f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{ACTOR}.optim.warmup_style": f"{ACTOR}.optim.lr_scheduler_type",
    f"{ROLLOUT}.log_prob_micro_batch_size": f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size": "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    "critic.ppo_micro_batch_size": "critic.ppo_micro_batch_size_per_gpu",
    "critic.forward_micro_batch_size": "critic.forward_micro_batch_size_per_gpu",
    "critic.optim.warmup_style": "critic.optim.lr_scheduler_type",
    **_under(
        "critic.model.fsdp_config", "critic.fsdp_config", "param_offload optimizer_offload offload_policy fsdp_size"
    ),
    "data.train_data_num": "data.train_max_samples",
    "data.val_data_num": "data.val_max_samples",
    "data.shuffle_train_dataloader": "data.shuffle",
}

RM_ALIASES: dict[str, str | Rewrite] = {
    "model.partial_pretrain": "model.path",
    "data.micro_batch_size": "data.micro_batch_size_per_gpu",
    "optim.clip_grad": "optim.grad_clip",
    "optim.warmup_style": "optim.lr_scheduler_type",
    "trainer.run_name": "trainer.experiment_name",
}

SFT_ALIASES: dict[str, str | Rewrite] = {**RM_ALIASES, "data.multiturn.messages_key": "data.messages_key"}
