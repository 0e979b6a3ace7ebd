"""Keys that users know from elsewhere and that burnish does not have: why, and which key to use instead.

The left side is a pattern over dotted names (`*` matches anything). Such a key is always refused, `+` or not.
"""

from fnmatch import fnmatchcase

FSDP2_WRAPS = "every decoder layer is sharded separately; remove the key"
# Of `burnish generate`, where `rollout` is a top-level section; `burnish ppo` has it inside actor_rollout_ref.
SAMPLES = "use data.n_samples (burnish ppo: actor_rollout_ref.rollout.n)"
SAMPLED_LOG_PROBS = (
    "the log-probs of what is sampled are always written, and no pass computes them again; remove the key "
    "(burnish ppo has it in actor_rollout_ref.rollout)"
)

UNSUPPORTED: dict[str, str] = {
    "*.fsdp_config.grad_offload": "gradients live as long as one update and move with their weights; "
    "use fsdp_config.param_offload or fsdp_config.optimizer_offload",
    "*.fsdp_config.wrap_policy.*": FSDP2_WRAPS,
    "*.fsdp_config.wrap_policy": FSDP2_WRAPS,
    "*.fsdp_config.use_orig_params": "weights always keep their own names and shapes; remove the key",
    "*.checkpoint.contents": "what is written and what is read are two keys; "
    "use checkpoint.save_contents and checkpoint.load_contents",
    "actor_rollout_ref.actor.tis_imp_ratio_cap": "use algorithm.rollout_correction.rollout_is and "
    "algorithm.rollout_correction.rollout_is_threshold",
    "actor_rollout_ref.actor.use_fused_kernels": "use actor_rollout_ref.model.use_fused_kernels",
    "actor_rollout_ref.actor.clip_ratio_decay*": "the clip range stays as it is set; use actor.clip_ratio",
    "actor_rollout_ref.model.use_shm": "the model is read once, in place; use actor_rollout_ref.model.path",
    "actor_rollout_ref.model.custom_chat_template": "put the template into the tokenizer's chat_template.jinja and use "
    "actor_rollout_ref.model.tokenizer_path",
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
    "transfer_queue.*": "batches go straight from worker to controller; remove the key",
    "data.balance_dp_token": "packing (data.packing) evens out lengths; remove the key",
    "model.strategy": "one process holds the whole model; remove the key",
    "use_remove_padding": "use model.use_remove_padding",
    "rollout.n": SAMPLES,
    "rollout.n_agent": SAMPLES,
    "rollout.calculate_log_probs": SAMPLED_LOG_PROBS,
    "rollout.log_prob_*": SAMPLED_LOG_PROBS,
    "rollout.val_kwargs.*": "sampling keys sit in rollout itself: rollout.temperature, rollout.top_p, rollout.top_k "
    "(burnish ppo: actor_rollout_ref.rollout.val_kwargs)",
    "rollout.micro_batch_size*": "use data.batch_size for the prompts answered at a time, rollout.max_num_seqs for the "
    "sequences generated at a time",
    "rollout.seed": "sampling follows trainer.seed",
}


def why_unsupported(name: str) -> str | None:
    """Why a key is refused, or None for one that is not in the table."""
    for pattern, reason in UNSUPPORTED.items():
        if fnmatchcase(name, pattern):
            return reason
    return None
