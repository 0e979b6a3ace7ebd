"""Keys that users know from elsewhere: `ALIASES` are other spellings, each accepted, rewritten and reported once;
`UNSUPPORTED` are refused, `+` or not, with the reason and the key to use instead, unless they are switched off (false,
null, 0, empty) or have a value in `AT_DEFAULT`.

An alias maps to the key of ours, or to a function `(value, given) -> {key: value}` where the value decides; `given`
holds everything else that was set. A function may hand back the key itself: then nothing is rewritten.
"""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from burnish.config.algorithm import OverlongBufferConfig
from burnish.config.key import keys_of
from burnish.config.profiler import OPTIONS
from burnish.config.reward import CustomRewardFunctionConfig, RewardManagerConfig
from burnish.config.rollout import LOOPS
from burnish.config.trainer import RayInitConfig

Rewrite = Callable[[Any, Mapping[str, Any]], dict[str, Any]]

POLICY, ACTOR, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MULTI_TURN = f"{ROLLOUT}.multi_turn"
PASSES = (  # which have a size of micro-batches
    f"{ACTOR}.ppo_", f"{ROLLOUT}.log_prob_", "actor_rollout_ref.ref.log_prob_", "critic.ppo_", "critic.forward_",
    "reward_model.",
)  # fmt: skip
SANDBOX = "url max_concurrent memory_limit_mb"  # keys of `sandbox_fusion`
OTHER_SPLITS = [f"{ROLLOUT}.{name}_parallel_size" for name in ("data", "expert", "pipeline_model")]
PROFILER_PARTS = [  # of a tool of a profiler
    f"*tool_config.{name}"
    for name in (
        "npu.*", "precision_debugger.*", "*.name", "torch.step_*", "torch.manual_save", "torch.schedule.*",
        "torch_memory.stack*", "torch_memory.context", "torch_memory.kw_args*",
    )
]  # fmt: skip
DEFAULT_LORA_RANK = 16
SHOWN_GENERATIONS = 10


def _if_set(name: str) -> Rewrite:
    """The key where it has a value: null, which users' files have, is its default."""
    return lambda value, given: {} if value is None else {name: value}


def _kl_penalty(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """A number is a coefficient; a name is the kind of estimate."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"algorithm.kl_ctrl.kl_coef" if is_number else "algorithm.kl_penalty": value}


def _agent_loop(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """`tool_agent_loop` is the loop `tool_agent`; the names of users' own stay as they are."""
    name = next((loop for loop in LOOPS if value == f"{loop}_loop"), value)
    return {f"{ROLLOUT}.agent.default_agent_loop": name}


def _lora_enable(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Switched on alone it means rank 16; a rank set with it is used."""
    rank = given.get(f"{ACTOR}.lora.r", given.get(f"{POLICY}.lora_rank", DEFAULT_LORA_RANK))
    return {f"{POLICY}.lora_rank": rank if value else 0}


def _log_generations(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """A switch becomes a number of samples."""
    count = (SHOWN_GENERATIONS if value else 0) if isinstance(value, bool) else value
    return {"trainer.log_val_generations": count}


def _column(side: str) -> dict[str, str | Rewrite]:
    """A column and the names inside it, `extra_info` and [question], are one key: extra_info.question."""

    def rewrite(column: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        inside = given.get(f"data.{side}_dict_keys") or []
        names = [column, *([inside] if isinstance(inside, str) else inside)]
        return {f"data.{side}_key": ".".join(map(str, names)) if column else column}

    return {f"data.{side}_key": rewrite, f"data.{side}_dict_keys": lambda inside, given: {}}


def _under(old: str, new: str, names: str) -> dict[str, str | Rewrite]:
    return {f"{old}.{name}".lstrip("."): f"{new}.{name}".lstrip(".") for name in names.split()}


def _keys(old: str, new: str, section: type) -> dict[str, str | Rewrite]:
    return _under(old, new, " ".join(keys_of(section)))


ALIASES: dict[str, str | Rewrite] = {
    "algorithm.group_size": f"{ROLLOUT}.n",
    "algorithm.kl_penalty": _kl_penalty,
    "algorithm.use_pf_ppo": "algorithm.pf_ppo.enable",
    f"{ROLLOUT}.agent_loop": _agent_loop,
    **_under("data", MULTI_TURN, "tool_config_path function_tool_path"),
    **_under("", MULTI_TURN, "tool_config_path function_tool_path"),
    "tool_config.max_tool_calls": f"{MULTI_TURN}.max_tool_calls",
    "tool_config.timeout": f"{MULTI_TURN}.tool_timeout",
    f"{MULTI_TURN}.max_turns": f"{MULTI_TURN}.max_assistant_turns",
    "sampling_params.max_tokens": "data.max_response_length",
    "sampling_params.timeout": f"{ROLLOUT}.trajectory_timeout",
    f"{ACTOR}.lora.enable": _lora_enable,
    f"{ACTOR}.lora.r": lambda rank, given: {
        f"{POLICY}.lora_rank": rank if given.get(f"{ACTOR}.lora.enable", True) else 0
    },
    f"{ACTOR}.lora.lora_alpha": f"{POLICY}.lora_alpha",
    f"{ACTOR}.lora.target_modules": f"{POLICY}.target_modules",
    "reward_model.model_path": "reward_model.model.path",
    "reward_model.batch_size": "reward_model.micro_batch_size_per_gpu",
    "reward_model.num_workers": "reward.num_workers",
    "reward.reward_model.enable": "reward_model.enable",
    "reward.reward_model.model_path": "reward_model.model.path",
    **_keys("reward.custom_reward_function", "custom_reward_function", CustomRewardFunctionConfig),
    **_keys("reward.reward_manager", "reward_manager", RewardManagerConfig),
    **_under("reward_model.sandbox_fusion", "reward_model.sandbox", SANDBOX),
    **_under("reward.sandbox_fusion", "reward_model.sandbox", SANDBOX),
    **_under("sandbox_fusion", "reward_model.sandbox", SANDBOX),
    **_keys("reward_model.overlong_buffer", "algorithm.overlong_buffer", OverlongBufferConfig),
    **_keys("reward_model.reward_kwargs.overlong_buffer_cfg", "algorithm.overlong_buffer", OverlongBufferConfig),
    **_keys("reward.reward_kwargs.overlong_buffer_cfg", "algorithm.overlong_buffer", OverlongBufferConfig),
    **dict.fromkeys(
        ("reward_model.reward_kwargs.max_resp_len", "reward.reward_kwargs.max_resp_len"), "data.max_response_length"
    ),
    **_keys("ray_kwargs.ray_init", "ray_init", RayInitConfig),
    "ray_kwargs.timeline_json_file": "ray_init.timeline_json_file",
    **_under(ACTOR, f"{ACTOR}.policy_loss", "tau_pos tau_neg"),
    "trainer.profile_steps": _if_set("global_profiler.steps"),
    **{
        f"{section}.{name}": _if_set(name)
        for section in ("trainer", "global_profiler.global_tool_config.nsys")
        for name in OPTIONS
    },
    "trainer.run_name": "trainer.experiment_name",
    "trainer.log_generation_samples": _log_generations,
    "model_engine": lambda value, given: {f"{ACTOR}.strategy": "fsdp" if value == "dp" else value},
    "hybrid_engine": "actor_rollout_ref.hybrid_engine",
    **{f"{name}micro_batch_size": f"{name}micro_batch_size_per_gpu" for name in PASSES},
    **{f"{name}.optim.warmup_style": f"{name}.optim.lr_scheduler_type" for name in (ACTOR, "critic")},
    **{f"{name}.optim.clip_grad": f"{name}.grad_clip" for name in (ACTOR, "critic")},
    **_under(
        "critic.model.fsdp_config", "critic.fsdp_config", "param_offload optimizer_offload offload_policy fsdp_size"
    ),
    "data.seed": _if_set("data.seed"),  # null, elsewhere: any order
    **{f"data.{split}_data_num": _if_set(f"data.{split}_max_samples") for split in ("train", "val")},
    "data.shuffle_train_dataloader": "data.shuffle",
}

RM_ALIASES: dict[str, str | Rewrite] = {
    "model.partial_pretrain": "model.path",
    "data.micro_batch_size": "data.micro_batch_size_per_gpu",
    "optim.clip_grad": "optim.grad_clip",
    "optim.warmup_style": _if_set("optim.lr_scheduler_type"),
    "trainer.run_name": "trainer.experiment_name",
    "data.seed": _if_set("data.seed"),
}

SFT_ALIASES: dict[str, str | Rewrite] = {
    **RM_ALIASES,
    **_column("prompt"),
    **_column("response"),
    "data.multiturn.messages_key": "data.messages_key",
    "data.use_dynamic_bsz": "data.packing",
    "use_remove_padding": "model.use_remove_padding",
    "optim.lr_scheduler": "optim.lr_scheduler_type",
    "optim.warmup_steps_ratio": "optim.lr_warmup_steps_ratio",
}

GENERATION_ALIASES: dict[str, str | Rewrite] = {
    "rollout.log_prob_micro_batch_size": "rollout.log_prob_micro_batch_size_per_gpu",
    "ray_kwargs": "ray_init",
}

EVAL_ALIASES: dict[str, str | Rewrite] = {
    **_keys("reward.custom_reward_function", "custom_reward_function", CustomRewardFunctionConfig),
    **_under("sandbox_fusion", "reward_model.sandbox", SANDBOX),
    "ray_kwargs": "ray_init",
}

UNSUPPORTED: dict[str, str] = {  # pattern over dotted names → why, and what to use instead
    "*.fsdp_config.grad_offload": "gradients live as long as one update and move with their weights; "
    "use fsdp_config.param_offload or fsdp_config.optimizer_offload",
    "*.fsdp_config.use_orig_params": "weights always keep their own names and shapes; remove the key",
    "*.checkpoint.contents": "what is written and what is read are two keys; "
    "use checkpoint.save_contents and checkpoint.load_contents",
    "actor_rollout_ref.actor.tis_imp_ratio_cap": "use algorithm.rollout_correction.rollout_is and "
    "algorithm.rollout_correction.rollout_is_threshold",
    "actor_rollout_ref.actor.use_fused_kernels": "use actor_rollout_ref.model.use_fused_kernels",
    "actor_rollout_ref.actor.clip_ratio_decay*": "the clip range stays as it is set; use actor.clip_ratio",
    "actor_rollout_ref.model.use_shm": "the model is read once, in place; use actor_rollout_ref.model.path",
    "*model.custom_chat_template": "put the template into the tokenizer's chat_template.jinja and use "
    "model.tokenizer_path",
    "actor_rollout_ref.rollout.use_fire_sampling": "tokens are sampled at one temperature; use rollout.temperature",
    "actor_rollout_ref.rollout.layered_summon": "the rollout engine reads the trained weights; remove the key",
    "actor_rollout_ref.rollout.multi_stage_wake_up": "use rollout.free_cache_engine",
    "actor_rollout_ref.rollout.chat_scheduler": "each trajectory is run by an agent loop; "
    "use rollout.agent.default_agent_loop",
    "actor_rollout_ref.rollout.micro_batch_size*": "use rollout.max_num_seqs for the sequences generated at a time",
    "actor_rollout_ref.rollout.sampling_params.*": "sampling keys sit in rollout itself: "
    "rollout.temperature, rollout.top_p, rollout.top_k",
    "actor_rollout_ref.rollout.seed": "sampling follows trainer.seed",
    "actor_rollout_ref.rollout.val_kwargs.max_tokens": "validation uses data.max_response_length",
    "algorithm.no_think_rl": "every token that the policy sampled is trained on; remove the key",
    "algorithm.use_weighted_grpo": "use data.dataset_weights to weigh data sources",
    "data.tokenizer": "use actor_rollout_ref.model.tokenizer_path",
    "data.return_raw_input_ids": "token ids are always kept as they were rendered; remove the key",
    "data.return_full_prompt": "the messages are always kept, as `raw_prompt`; remove the key",
    "data.trust_remote_code": "use actor_rollout_ref.model.trust_remote_code",
    "data.filter_accuracy": "use algorithm.filter_groups",
    "data.chat_template": "put the template into the tokenizer's folder and use actor_rollout_ref.model.tokenizer_path",
    "trainer.remove_previous_ckpt_in_save": "use trainer.max_actor_ckpt_to_keep",
    "trainer.del_local_ckpt_after_load": "use trainer.max_actor_ckpt_to_keep",
    "trainer.use_legacy_worker_impl": "there is one implementation of each worker; remove the key",
    "trainer.npu*": "devices are trainer.device=cuda or cpu",
    **dict.fromkeys(
        PROFILER_PARTS, "a profile has a whole step, with whole stacks; the tools are torch, torch_memory and nsys"
    ),
    "transfer_queue.*": "batches go straight from worker to controller; remove the key",
    "data.balance_dp_token": "packing (data.packing) evens out lengths; remove the key",
    "ulysses_sequence_parallel_size": "one process trains on whole sequences; remove the key",
    "model.strategy": "one process holds the whole model; remove the key",
    "model.fsdp_config.*": "one process holds the whole model; remove the key",
    "data.multiturn.enable": "a row with messages is a conversation; remove the key",
    "data.*tools_key": "burnish sft renders no schemas of tools; remove the key",
    "data.*enable_thinking_*": "use data.apply_chat_template_kwargs",
    "data.custom_cls.*": "rows are conversations, or a prompt and its response; write the files in one of these forms",
    "data.max_token_len_per_gpu": "a pass has data.micro_batch_size_per_gpu × data.max_length tokens; use these",
    "data.pad_mode": "examples are packed (data.packing); remove the key",
    "data.ignore_input_ids_mismatch": "a conversation is rendered as a whole; remove the key",
    "data.num_workers": "rows are held in memory; remove the key",
    "engine": "one process holds the whole model; remove the key",
    "engine.*": "one process holds the whole model; remove the key",
    "trainer.resume_path": "use trainer.resume_mode=resume_path and trainer.resume_from_path",
    "checkpoint.*": "a checkpoint has all of a run; remove the key",
    "trainer.checkpoint.*": "a checkpoint has all of a run; remove the key",
    "use_remove_padding": "use model.use_remove_padding",
    "*optim.total_training_steps": "the schedule ends with the run; use trainer.total_training_steps",
    "optim.optimizer_impl": "use optim.optimizer",
    "optim.override_optimizer_config": "the keys of the optimiser are in optim itself",
    "optim.zero_indexed_step": "steps of a schedule are counted in one way; remove the key",
    "*optim.num_cycles": "the cosine schedule falls once; remove the key",
    "*.fsdp_config.seed": "use trainer.seed",
    "*.fsdp_config.full_determinism": "the same seed gives the same run; remove the key",
    "*.fsdp_config.dtype": "use model.dtype",
    "*.fsdp_config.mixed_precision.reduce_dtype": "gradients are added up in float32; remove the key",
    "*.fsdp_config.mixed_precision.buffer_dtype": "buffers have the type that the model gives them; remove the key",
    "*.fsdp_config.mixed_precision*": "use model.dtype",
    "*.data_loader_seed": "the order of mini-batches follows trainer.seed",
    "*.use_shm": "files are read once, in place; remove the key",
    "actor_rollout_ref.actor.freeze_vision_tower": "models read text alone; remove the key",
    "actor_rollout_ref.actor.calculate_entropy": "use actor.entropy_coeff",
    "actor_rollout_ref.actor.use_remove_padding": "use actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.ref.strategy": "the reference is sharded as the actor; remove the key",
    "actor_rollout_ref.ref.use_torch_compile": "the model runs without compiling; remove the key",
    "actor_rollout_ref.ref.ulysses_sequence_parallel_size": "use actor.ulysses_sequence_parallel_size",
    "actor_rollout_ref.ref.entropy_*": "the reference computes no entropy; remove the key",
    "actor_rollout_ref.nccl_timeout": "use trainer.worker_timeout",
    "*model.fused_kernel_options.*": "use model.use_fused_kernels",
    "*model.tiled_mlp.*": "use a smaller micro-batch",
    "*model.hf_config_path": "the configuration is the model folder's; use model.override_config",
    **dict.fromkeys(OTHER_SPLITS, "use rollout.tensor_model_parallel_size"),
    "actor_rollout_ref.rollout.cudagraph_capture_sizes": "use rollout.enforce_eager",
    "actor_rollout_ref.rollout.logprobs_mode": "log-probs are those of the sampled distribution; remove the key",
    "actor_rollout_ref.rollout.scheduling_policy": "requests run in their order; remove the key",
    "actor_rollout_ref.rollout.over_sample_rate": "use data.gen_batch_size to draw more prompts than are trained on",
    "actor_rollout_ref.rollout.skip_*": "every batch is generated, from token ids; remove the key",
    "actor_rollout_ref.rollout.quantization*": "engines generate in rollout.dtype; remove the key",
    "actor_rollout_ref.rollout.trace.*": "use trainer.rollout_data_dir to keep trajectories",
    "actor_rollout_ref.rollout.agent.custom_async_server.*": "use rollout.name; remove the key",
    f"{MULTI_TURN}.use_inference_chat_template": "turns are joined token by token; remove the key",
    f"{MULTI_TURN}.tokenization_sanity_check_mode": "turns are joined token by token; remove the key",
    f"{MULTI_TURN}.num_repeat_rollouts": "use rollout.n",
    "data.image_patch_size": "models read text alone; remove the key",
    "data.return_multi_modal_inputs": "models read text alone; remove the key",
    "data.datagen.*": "a reward function or an agent loop proposes rows; use data.augment",
    "reward_model.enable_resource_pool": "use trainer.resource_pools",
    "reward_model.n_gpus_per_node": "use trainer.resource_pools",
    "reward_model.nnodes": "use trainer.resource_pools",
    "reward_model.use_reward_loop": "samples are scored as their trajectories finish; remove the key",
    "*reward_model.rollout.*": "a reward model scores without an engine; use reward_model.micro_batch_size_per_gpu",
    "reward.max_concurrency_per_worker": "use reward.num_workers",
    # Of `burnish generate`, where `rollout` is a top-level section; `burnish ppo` has it inside actor_rollout_ref.
    "rollout.n_agent": "use data.n_samples (burnish ppo: actor_rollout_ref.rollout.n)",
    "rollout.val_kwargs.*": "sampling keys sit in rollout itself: rollout.temperature, rollout.top_p, rollout.top_k "
    "(burnish ppo: actor_rollout_ref.rollout.val_kwargs)",
    "rollout.micro_batch_size*": "use data.batch_size for the prompts answered at a time, rollout.max_num_seqs for the "
    "sequences generated at a time",
    "rollout.seed": "sampling follows trainer.seed",
}

#: Pattern over names in UNSUPPORTED → the value, or a tuple of them, of files that leave it alone, or that would change
#: no figure.
AT_DEFAULT: dict[str, Any] = {
    "*optim.total_training_steps": -1,
    "*optim.num_cycles": 0.5,
    "optim.optimizer_impl": "torch.optim",
    "optim.zero_indexed_step": True,
    "*.fsdp_config.seed": 42,
    "*.fsdp_config.dtype": "bfloat16",
    "*.fsdp_config.mixed_precision.param_dtype": ("bf16", "bfloat16"),
    "*.fsdp_config.mixed_precision.reduce_dtype": ("fp32", "float32"),
    "*.fsdp_config.mixed_precision.buffer_dtype": ("fp32", "float32"),
    "*.data_loader_seed": 42,
    "actor_rollout_ref.actor.use_remove_padding": True,
    "actor_rollout_ref.ref.strategy": "fsdp",
    "actor_rollout_ref.ref.use_torch_compile": True,
    "actor_rollout_ref.ref.ulysses_sequence_parallel_size": 1,
    "actor_rollout_ref.nccl_timeout": 600,
    "ulysses_sequence_parallel_size": 1,
    "model.strategy": ("fsdp", "fsdp2"),
    "model.fsdp_config.model_dtype": ("fp32", "float32"),
    "data.multiturn.enable": True,
    "data.*tools_key": "tools",
    "data.*enable_thinking_key": "enable_thinking",
    "data.max_token_len_per_gpu": 8192,
    "data.pad_mode": "no_padding",
    "data.num_workers": 8,
    "engine": "fsdp",
    "engine.strategy": ("fsdp", "fsdp2"),
    "engine.model_dtype": ("fp32", "float32"),
    "engine.dtype": "bfloat16",
    "engine.fsdp_size": -1,
    "engine.seed": 42,
    "engine.*shard_after_forward": True,
    "engine.use_torch_compile": True,
    "engine.ulysses_sequence_parallel_size": 1,
    "*model.fused_kernel_options.impl_backend": "torch",
    "*model.tiled_mlp.num_shards": 4,
    "*checkpoint.*_contents": ["model", "optimizer", "extra"],
    **dict.fromkeys(OTHER_SPLITS, 1),
    "actor_rollout_ref.rollout.logprobs_mode": "processed_logprobs",
    "actor_rollout_ref.rollout.scheduling_policy": "fcfs",
    "actor_rollout_ref.rollout.skip_dump_dir": "/tmp/rollout_dump",
    "actor_rollout_ref.rollout.skip_tokenizer_init": True,
    f"{MULTI_TURN}.tokenization_sanity_check_mode": "strict",
    "data.image_patch_size": 14,
    "data.return_multi_modal_inputs": True,
    "reward_model.use_reward_loop": True,
    "reward.max_concurrency_per_worker": 16,
    "trainer.use_legacy_worker_impl": ("auto", "enable", "disable"),
    "actor_rollout_ref.rollout.layered_summon": True,
    "*.use_shm": True,
    **dict.fromkeys(
        PROFILER_PARTS,
        (0, -1, 32, True, "all", "level0", "level1", "npu", "nsight", "nsys", "torch", "torch_memory"),
    ),
}


def leaves_alone(name: str, value: Any) -> bool:
    """Whether a key that is not supported has a value that asks for nothing."""
    fitting = [default for pattern, default in AT_DEFAULT.items() if fnmatchcase(name, pattern)]
    return not value or any(value in default if isinstance(default, tuple) else value == default for default in fitting)


def why_unsupported(name: str) -> str | None:
    """Why a key is refused, or None for one that is not in the table."""
    return next((reason for pattern, reason in UNSUPPORTED.items() if fnmatchcase(name, pattern)), None)
