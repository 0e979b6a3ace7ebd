"""From keys to objects: other spellings, refused and unknown keys, what is not available yet, what has no effect."""

import pytest

from burnish.config import PPOConfig
from burnish.config.aliases import (
    ALIASES,
    EVAL_ALIASES,
    GENERATION_ALIASES,
    RM_ALIASES,
    SFT_ALIASES,
    why_unsupported,
)
from burnish.config.generation import EvalConfig, GenerationConfig
from burnish.config.key import keys_of, read
from burnish.config.nearest import nearest
from burnish.config.supervised import RMConfig, SFTConfig
from burnish.errors import ConfigError, NotAvailable
from tests.config.conftest import refused

ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"


def test_what_is_explicit_and_both_spellings_must_agree_within_one_source(make):
    built = make({"data.train_files": "a.parquet", "critic.optim.lr": 1e-4})
    assert built.explicit == {"data.train_files", "critic.optim.lr"}
    assert built.config.critic.optim.lr == 1e-4
    assert built.config.actor_rollout_ref.actor.optim.lr == 1e-6
    built = make({"algorithm.kl_penalty": "k3"})
    assert built.config.algorithm.kl_penalty == "k3" and built.notices == []
    keys = {f"{ROLLOUT}.n": 8, "algorithm.group_size": 4}
    refused(r"group_size=4 are two spellings of .*rollout\.n with different values", make, keys)
    assert make(keys | {f"{ROLLOUT}.n": 4}).config.actor_rollout_ref.rollout.n == 4
    assert make(keys, typed=["algorithm.group_size"]).config.actor_rollout_ref.rollout.n == 4
    assert make(keys, typed=[f"{ROLLOUT}.n"]).config.actor_rollout_ref.rollout.n == 8


@pytest.mark.parametrize(
    ("name", "value", "target", "becomes"),
    [
        ("algorithm.group_size", 8, "rollout.n", 8),
        ("algorithm.kl_penalty", 0.01, "algorithm.kl_ctrl.kl_coef", 0.01),
        (f"{ROLLOUT}.agent_loop", "tool_agent_loop", "rollout.agent.default_agent_loop", "tool_agent"),
        (f"{ROLLOUT}.agent_loop", "search_agent_loop", "rollout.agent.default_agent_loop", "search_agent"),
        (f"{ROLLOUT}.agent_loop", "my_loop", "rollout.agent.default_agent_loop", "my_loop"),
        (f"{ROLLOUT}.multi_turn.max_turns", 4, "multi_turn.max_assistant_turns", 4),
        ("tool_config_path", "tools.yaml", "multi_turn.tool_config_path", "tools.yaml"),
        ("tool_config.max_tool_calls", 7, "multi_turn.max_tool_calls", 7),
        ("tool_config.timeout", 12, "multi_turn.tool_timeout", 12.0),
        ("sampling_params.timeout", 5, "rollout.trajectory_timeout", 5.0),
        ("trainer.run_name", "exp1", "trainer.experiment_name", "exp1"),
        ("critic.ppo_micro_batch_size", 4, "critic.ppo_micro_batch_size_per_gpu", 4),
        (f"{ROLLOUT}.log_prob_micro_batch_size", 2, "rollout.log_prob_micro_batch_size_per_gpu", 2),
        (f"{ACTOR}.lora.lora_alpha", 32, "model.lora_alpha", 32),
        (f"{ACTOR}.lora.target_modules", ["q_proj"], "model.target_modules", ["q_proj"]),
        ("data.train_data_num", 100, "data.train_max_samples", 100),
        ("trainer.log_generation_samples", True, "trainer.log_val_generations", 10),
        ("trainer.log_generation_samples", 3, "trainer.log_val_generations", 3),
        ("sampling_params.max_tokens", 99, "data.max_response_length", 99),
        ("model_engine", "dp", "actor.strategy", "fsdp"),
        ("hybrid_engine", True, "actor_rollout_ref.hybrid_engine", True),
        (f"{ACTOR}.ppo_micro_batch_size", 4, "actor.ppo_micro_batch_size_per_gpu", 4),
        (f"{ACTOR}.optim.warmup_style", "cosine", "actor.optim.lr_scheduler_type", "cosine"),
        (f"{ACTOR}.lora.enable", False, "model.lora_rank", 0),
        (f"{ACTOR}.lora.enable", True, "model.lora_rank", 16),
        (f"{ACTOR}.lora.r", 8, "model.lora_rank", 8),
        ("reward.custom_reward_function.path", "f.py", "custom_reward_function.path", "f.py"),
        ("reward.custom_reward_function.reward_kwargs", {"a": {"b": 1}}, "function.reward_kwargs", {"a": {"b": 1}}),
        ("reward.reward_manager.name", "dapo", "reward_manager.name", "dapo"),
        ("reward.reward_manager.module.path", "m.py", "reward_manager.module.path", "m.py"),
        ("reward.reward_model.model_path", "rm", "reward_model.model.path", "rm"),
        ("reward.sandbox_fusion.url", "http://h", "reward_model.sandbox.url", "http://h"),
        ("ray_kwargs.ray_init.num_cpus", 2, "ray_init.num_cpus", 2),
        ("ray_kwargs.timeline_json_file", "t.json", "ray_init.timeline_json_file", "t.json"),
        ("data.tool_config_path", "tools.yaml", "multi_turn.tool_config_path", "tools.yaml"),
        ("function_tool_path", "tools.py", "multi_turn.function_tool_path", "tools.py"),
        (f"{ACTOR}.optim.clip_grad", 0.5, "actor.grad_clip", 0.5),
    ],
)
def test_other_spellings_are_taken_and_reported_once(make, name, value, target, becomes):
    built = make({name: value})
    (key,) = [key for key in built.explicit if key.endswith(target)]
    assert read(built.config, key) == becomes
    assert sum(name in notice and key in notice for notice in built.notices) == 1


@pytest.mark.parametrize(
    ("table", "root"),
    [
        (ALIASES, PPOConfig),
        (SFT_ALIASES, SFTConfig),
        (RM_ALIASES, RMConfig),
        (GENERATION_ALIASES, GenerationConfig),
        (EVAL_ALIASES, EvalConfig),
    ],
)
def test_every_other_spelling_leads_to_a_known_key_and_no_known_one_is_unsupported(table, root):
    for name, alias in table.items():
        targets = [alias] if isinstance(alias, str) else alias("x", {})
        assert set(targets) <= set(keys_of(root)), name
        assert name in targets or name not in keys_of(root), name
    of_ppo_alone = {"data.custom_cls.path", "data.custom_cls.name"}  # burnish sft refuses them
    assert {name for name in keys_of(root) if why_unsupported(name)} <= of_ppo_alone


@pytest.mark.parametrize(
    ("unknown", "known"),
    [
        ("trainer.total_epoch", "trainer.total_epochs"),
        ("actor_rollout_ref.actor.optim.learning_rate_warmup_steps", "actor_rollout_ref.actor.optim.lr_warmup_steps"),
        ("actor.optim.lr", "actor_rollout_ref.actor.optim.lr"),
        ("trainer.adv_estimator", "algorithm.adv_estimator"),
        ("actor_rollout_ref.rollot.temperature", "actor_rollout_ref.rollout.temperature"),
    ],
)
def test_unknown_keys_name_the_nearest(make, unknown, known):
    refused(rf"^unknown key {unknown!r}; did you mean {known!r}\?$", make, {unknown: 1})


def test_unknown_keys_sections_and_keys_without_effect_are_reported_together(make):
    with pytest.raises(ConfigError) as error:
        make({"data.sed": 1, "xyzzy": 2})
    assert str(error.value).splitlines() == ["unknown key 'data.sed'; did you mean 'data.seed'?", "unknown key 'xyzzy'"]
    refused("'data' is a section, not a key", make, {"data": 3})
    refused(r"data.seed={a:1}: must be an integer", make, {"data.seed.a": 1})
    assert make({"data.curriculum": None}).explicit == frozenset()
    built = make({f"{ROLLOUT}.load_format": "dummy", f"{ROLLOUT}.mode": "sync", f"{ACTOR}.strategy": "fsdp2"})
    assert built.notices == [
        f"no effect: {ACTOR}.strategy (several processes shard a model with FSDP2; one process holds all of it)",
        f"no effect: {ROLLOUT}.mode (every engine serves each trajectory separately)",
        f"no effect: {ROLLOUT}.load_format (engines generate with the weights that are trained)",
    ]


def test_keys_without_effect_are_one_line_in_the_log(make, caplog):
    given = {f"{ROLLOUT}.mode": "sync", f"{ROLLOUT}.load_format": "dummy", "trainer.run_name": "a"}
    with caplog.at_level("INFO"):
        make(given | {"trainer.esi_redundant_time": 5}).log_notices()
    (line,) = [record.message for record in caplog.records if "no effect" in record.message]
    assert line.startswith(f"no effect: {ROLLOUT}.mode (every engine") and f"; {ROLLOUT}.load_format (" in line
    assert line.endswith("; trainer.esi_redundant_time (checkpoints are written by save_freq alone)")
    assert any("trainer.run_name is read as" in record.message for record in caplog.records)


def test_unsupported_keys_that_are_switched_off_and_class_names_have_no_effect(make):
    off = {"trainer.del_local_ckpt_after_load": False, "data.tokenizer": None, f"{ROLLOUT}.n_samples": None}
    refused(f"unknown key '{ROLLOUT}.n_samples'", make, off)
    built = make({"trainer.del_local_ckpt_after_load": False, "data.tokenizer": None, f"{ACTOR}._target_": "a.Class"})
    assert built.explicit == frozenset() and len(built.notices) == 2
    assert built.notices[0].startswith("no effect: trainer.del_local_ckpt_after_load, data.tokenizer (they are off")
    assert built.notices[1].startswith(f"no effect: {ACTOR}._target_ (")
    refused("sampling follows trainer.seed", make, {f"{ROLLOUT}.seed": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (f"{ROLLOUT}.layered_summon", True),
        ("actor_rollout_ref.model.use_shm", True),
        ("trainer.use_legacy_worker_impl", "disable"),
        ("reward_model.use_reward_loop", True),
        ("algorithm.overlong_buffer.log", True),
        (f"{ACTOR}.fsdp_config.mixed_precision.param_dtype", "bf16"),
        (f"{ACTOR}.fsdp_config.mixed_precision.reduce_dtype", "fp32"),
        ("critic.fsdp_config.mixed_precision.buffer_dtype", "float32"),
    ],
)
def test_keys_of_verls_scripts_that_change_no_figure_are_said_and_have_no_effect(make, name, value):
    [notice] = make({name: value}).notices
    assert notice.startswith(f"no effect: {name} (")


@pytest.mark.parametrize("split", ["train", "val"])
def test_no_number_of_rows_means_all_of_them(make, split):
    assert make({f"data.{split}_data_num": None}).explicit == frozenset()
    assert make({f"data.{split}_data_num": 5}).given == {f"data.{split}_max_samples": 5}


@pytest.mark.parametrize("section", ["reward_model", "reward"])
def test_the_length_that_a_reward_manager_is_given_is_that_of_the_data(make, section):
    name = f"{section}.reward_kwargs.max_resp_len"
    assert make({name: 20}).config.data.max_response_length == 20
    refused("two spellings of data.max_response_length", make, {name: 20, "data.max_response_length": 30})
    assert make({f"{section}.reward_kwargs.overlong_buffer_cfg.len": 8}).config.algorithm.overlong_buffer.len == 8


def test_nothing_is_suggested_where_nothing_is_near_and_names_of_megabytes_are_not_compared(monkeypatch):
    assert nearest("qqqq", ["data.seed"]) is nearest("anything", []) is None
    monkeypatch.setattr("burnish.config.nearest._likeness", lambda *_: pytest.fail("compared"))
    assert nearest("data.seed" * 400_000, ["data.seed"]) is None


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("critic.fsdp_config.grad_offload", "fsdp_config.param_offload"),
        (f"{ACTOR}.checkpoint.contents", "checkpoint.save_contents"),
        (f"{ACTOR}.tis_imp_ratio_cap", "algorithm.rollout_correction"),
        ("trainer.remove_previous_ckpt_in_save", "trainer.max_actor_ckpt_to_keep"),
        (f"{ACTOR}.fsdp_config.mixed_precision.param_dtype", "use model.dtype"),
        (f"{ACTOR}.fsdp_config.mixed_precision.reduce_dtype", "added up in float32"),
    ],
)
def test_unsupported_keys_say_why_and_what_instead(make, name, advice):
    refused(f"^key {name!r} is not supported: .*{advice}", make, {name: True})


def test_open_sections_take_any_key(make):
    built = make({"custom_reward_function.reward_kwargs.nested.deep": 1, "custom_reward_function.reward_kwargs.a": 0.1})
    assert built.config.custom_reward_function.reward_kwargs == {"nested": {"deep": 1}, "a": 0.1}


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({"model_engine": "megatron"}, [f"training with Megatron-core (asked for by {ACTOR}.strategy"]),
        ({f"{ACTOR}.megatron.tensor_model_parallel_size": 2}, ["training with Megatron-core"]),
        ({"data.image_key": "pictures"}, ["images in prompts"]),
    ],
)
def test_features_not_available_yet_are_refused_by_name(make, keys, parts):
    with pytest.raises(NotAvailable) as error:
        make(keys)
    assert str(error.value).startswith("not available yet: ")
    for part in parts:
        assert part in str(error.value)
    # They may be set to their default.
    make({"data.image_key": "images", "actor_rollout_ref.hybrid_engine": True})


def test_references_between_keys_see_defaults_too_and_open_values_must_be_given(make):
    built = make({f"{ROLLOUT}.prompt_length": "${data.max_prompt_length}", "trainer.experiment_name": "b${data.seed}"})
    assert built.config.actor_rollout_ref.rollout.prompt_length == 512
    assert built.config.trainer.experiment_name == "b1"
    refused("cannot be filled in", make, {"data.seed": "${data.nothing}"})
    refused(r"data.train_files must be set: the recipe leaves it open \(\?\?\?\)", make, {"data.train_files": "???"})


def test_keys_of_a_section_read_as_those_of_a_mapping():
    optim = PPOConfig().critic.optim
    assert (optim["lr"], optim.get("lr"), optim.get("no_key", 3)) == (optim.lr, optim.lr, 3)
    assert "lr" in optim and "get" not in optim and optim.get("get") is None
    with pytest.raises(KeyError, match="no_key"):
        optim["no_key"]
