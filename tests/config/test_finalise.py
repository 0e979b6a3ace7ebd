"""Derived defaults and what does not go together."""

from pathlib import Path

import pytest

from burnish.algorithms.advantages import needs_of
from burnish.config import Needs, SFTConfig, finalise, finalise_sft
from burnish.config.algorithm import ESTIMATORS
from burnish.errors import ConfigError

GROUPS, CRITIC = Needs(groups=True), Needs(critic=True)
ROLLOUT, ACTOR, VAL = "actor_rollout_ref.rollout", "actor_rollout_ref.actor", "actor_rollout_ref.rollout.val_kwargs"


def refused(finish, keys, *parts, needs=None):
    with pytest.raises(ConfigError) as error:
        finish(keys, needs)
    for part in parts:
        assert part in str(error.value)


def test_missing_required_keys_are_named(make):
    built = make()
    with pytest.raises(ConfigError) as error:
        finalise(built.config, built.explicit, Needs())
    assert "data.train_files and actor_rollout_ref.model.path must be set" in str(error.value)
    assert "data.train_files=train.parquet" in str(error.value)


def test_everything_that_follows_is_filled(finish):
    config, notices = finish(needs=CRITIC)
    policy, critic = config.actor_rollout_ref, config.critic
    assert config.data.train_files == ["train.parquet"]
    assert config.data.val_files == []
    assert config.data.gen_batch_size == 1024
    assert (policy.rollout.n, policy.rollout.n_agent) == (1, 1)
    assert (policy.rollout.prompt_length, policy.rollout.response_length) == (512, 512)
    assert (policy.actor.clip_ratio_low, policy.actor.clip_ratio_high) == (0.2, 0.2)
    assert (critic.enable, critic.model.path, critic.ppo_mini_batch_size) == (True, "some/model", 256)
    assert (critic.ppo_epochs, critic.loss_agg_mode, critic.shuffle) == (1, "token-mean", False)
    assert policy.ref.log_prob_use_dynamic_bsz is policy.rollout.log_prob_use_dynamic_bsz is False
    assert config.trainer.default_local_dir == "outputs/burnish/run"
    assert notices == []


def test_finalising_twice_changes_nothing(make, finish):
    config, _ = finish({"algorithm.kl_ctrl.kl_coef": 0.1}, CRITIC)
    before = repr(config)
    finalise(config, frozenset({"data.train_files", "algorithm.kl_ctrl.kl_coef"}), CRITIC)
    assert repr(config) == before


def test_home_folders_are_expanded(finish):
    config, _ = finish(
        {"data.val_files": ["~/v.parquet"], "trainer.default_local_dir": "~/out", "critic.model.path": "~/c"}
    )
    assert config.data.val_files == [str(Path.home() / "v.parquet")]
    assert config.trainer.default_local_dir == str(Path.home() / "out")
    assert config.critic.model.path == str(Path.home() / "c")


# Batch sizes


def test_groups(finish):
    config, notices = finish({"algorithm.adv_estimator": "grpo"}, GROUPS)
    assert config.actor_rollout_ref.rollout.n == 4
    assert notices == [f"{ROLLOUT}.n=4: grpo compares the responses to one prompt, and none was asked for"]
    config, notices = finish({f"{ROLLOUT}.n": 8}, GROUPS)
    assert (config.actor_rollout_ref.rollout.n, notices) == (8, [])
    keys = {"algorithm.adv_estimator": "grpo", f"{ROLLOUT}.n": 1}
    for name in (name for name in ESTIMATORS if needs_of(name).groups):
        keys["algorithm.adv_estimator"] = name
        refused(finish, keys, f"{ROLLOUT}.n=1", name, "at least 2", "leave", needs=GROUPS)
    refused(finish, {f"{ROLLOUT}.do_sample": False}, "do_sample=false gives 4 equal responses", needs=GROUPS)


def test_n_agent_is_another_name_for_n(finish):
    assert finish({f"{ROLLOUT}.n_agent": 5}, GROUPS)[0].actor_rollout_ref.rollout.n == 5
    refused(finish, {f"{ROLLOUT}.n_agent": 5, f"{ROLLOUT}.n": 4}, "n=4", "n_agent=5", "keep one")


def test_a_default_that_does_not_fit_is_called_one(finish):
    mini = f"{ACTOR}.ppo_mini_batch_size"
    said = f"data.train_batch_size=500 is not a multiple of {mini}=256 (the default): "
    refused(finish, {"data.train_batch_size": 500}, said, f"divide it are 250 and 500; set {mini} to one of them")
    refused(finish, {mini: 3}, f"data.train_batch_size=1024 (the default) is not a multiple of {mini}=3: ")


def test_mini_batches_divide_the_batch(finish):
    keys = {"data.train_batch_size": 16, f"{ACTOR}.ppo_mini_batch_size": 5}
    refused(finish, keys, "data.train_batch_size=16", "ppo_mini_batch_size=5", "are 4 and 8")
    keys = {"data.train_batch_size": 16, f"{ACTOR}.ppo_mini_batch_size": 32}
    refused(finish, keys, "ppo_mini_batch_size=32 is more than data.train_batch_size=16")
    keys = {"data.train_batch_size": 16, "critic.ppo_mini_batch_size": 3}
    refused(finish, keys, "critic.ppo_mini_batch_size=3", "are 2 and 4")
    refused(finish, {"data.train_batch_size": 300}, "ppo_mini_batch_size=256", "are 150 and 300")


def test_a_small_batch_shrinks_the_default_mini_batch(finish):
    config, notices = finish({"data.train_batch_size": 16})
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == config.critic.ppo_mini_batch_size == 16
    assert notices == [f"{ACTOR}.ppo_mini_batch_size=16: the whole of data.train_batch_size"]


def test_generation_rounds_are_as_large_as_the_batch(finish):
    finish({"data.train_batch_size": 256, "data.gen_batch_size": 256})
    keys = {"data.train_batch_size": 256, "data.gen_batch_size": 512}
    refused(
        finish, keys, "data.gen_batch_size=512 with data.train_batch_size=256", "algorithm.filter_groups.enable=true"
    )
    assert finish(keys | {"algorithm.filter_groups.enable": True})[0].data.gen_batch_size == 512


def test_passes_follow_the_actor(finish):
    config, notices = finish(
        {
            f"{ACTOR}.use_dynamic_bsz": True,
            f"{ACTOR}.ppo_max_token_len_per_gpu": 4096,
            f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4,
            "critic.ppo_micro_batch_size_per_gpu": 2,
            "critic.use_dynamic_bsz": False,
        },
        CRITIC,
    )
    assert config.actor_rollout_ref.ref.log_prob_use_dynamic_bsz is True
    assert config.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu == 4096
    assert config.critic.use_dynamic_bsz is False
    assert config.critic.forward_max_token_len_per_gpu == 4096
    assert config.critic.forward_micro_batch_size_per_gpu == 2
    assert len(notices) == 1 and notices[0].startswith(f"no effect: {ACTOR}.ppo_micro_batch_size_per_gpu")


# Critic, KL and loss


def test_the_critic_is_there_where_it_is_needed(finish):
    refused(finish, {"critic.enable": False}, "critic.enable=false", "adv_estimator=gae needs a critic", needs=CRITIC)
    keys = {"algorithm.adv_estimator": "grpo", "critic.optim.lr": 1e-4, "critic.enable": True, f"{ROLLOUT}.n": 2}
    config, notices = finish(keys, GROUPS)
    assert config.critic.enable is False
    assert notices == ["unused: critic.enable, critic.optim.lr (algorithm.adv_estimator=grpo has no critic)"]
    refused(finish, {"trainer.critic_warmup": 2}, "trainer.critic_warmup=2", "would train nothing")


@pytest.mark.parametrize(
    ("coefficient", "switch", "section"),
    [
        ("algorithm.kl_ctrl.kl_coef", "algorithm.use_kl_in_reward", lambda c: c.algorithm.use_kl_in_reward),
        (f"{ACTOR}.kl_loss_coef", f"{ACTOR}.use_kl_loss", lambda c: c.actor_rollout_ref.actor.use_kl_loss),
    ],
)
def test_a_kl_coefficient_switches_its_term_on(finish, coefficient, switch, section):
    config, notices = finish({coefficient: 0.05})
    assert section(config) is True
    assert notices == [f"{switch}=true, because {coefficient}=0.05 is set"]
    assert section(finish({coefficient: 0.05, switch: True})[0]) is True
    assert section(finish({coefficient: 0.0, switch: False})[0]) is False
    assert section(finish({coefficient: 0.0})[0]) is False
    refused(finish, {coefficient: 0.05, switch: False}, f"{coefficient}=0.05 with {switch}=false")


def test_kl_keys_without_a_term_are_reported(finish):
    _, notices = finish({"algorithm.kl_ctrl.type": "adaptive", f"{ACTOR}.kl_loss_type": "k1"})
    assert notices == [
        "unused: algorithm.kl_ctrl.type (there is no KL term in the reward)",
        f"unused: {ACTOR}.kl_loss_type (there is no KL term in the loss)",
    ]


def test_clip_ranges(finish):
    actor = finish({f"{ACTOR}.clip_ratio": 0.1, f"{ACTOR}.clip_ratio_high": 0.28})[0].actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.1, 0.28)


def test_numbers_that_the_estimator_does_not_read_are_reported(finish):
    _, notices = finish({"algorithm.adv_estimator": "grpo", "algorithm.lam": 0.9, f"{ROLLOUT}.n": 2}, GROUPS)
    assert notices == ["unused: algorithm.lam (algorithm.adv_estimator=grpo does not read it)"]
    assert finish({"algorithm.adv_estimator": "mine:estimate", "algorithm.lam": 0.9})[1] == []


# Lengths and sampling


def test_lengths_have_one_home(finish):
    config, notices = finish({f"{ROLLOUT}.prompt_length": 64, f"{ROLLOUT}.response_length": 512})
    assert config.data.max_prompt_length == 64
    assert notices == [f"data.max_prompt_length=64, from {ROLLOUT}.prompt_length"]
    keys = {"data.max_response_length": 128, f"{ROLLOUT}.response_length": 256}
    refused(finish, keys, "data.max_response_length=128", "response_length=256", "keep one")
    refused(finish, {f"{ROLLOUT}.max_model_len": 1000}, "max_model_len=1000", "= 1024")


def test_sampling_in_training(finish):
    refused(finish, {f"{ROLLOUT}.temperature": 0}, f"{ROLLOUT}.temperature=0", "do_sample=false")
    assert finish({f"{ROLLOUT}.temperature": 0, f"{ROLLOUT}.do_sample": False})[1] == []
    config, notices = finish({f"{ROLLOUT}.top_p": 0.9, f"{ROLLOUT}.top_k": 0})
    assert config.actor_rollout_ref.rollout.top_k == -1
    assert len(notices) == 1 and notices[0].startswith(f"warning: {ROLLOUT}.top_p=0.9 excludes unlikely tokens")


def test_sampling_in_validation(finish):
    config, notices = finish({f"{VAL}.do_sample": True, f"{VAL}.n": 4, f"{ROLLOUT}.temperature": 0.7})
    assert config.actor_rollout_ref.rollout.val_kwargs.temperature == 0.7
    assert notices == [f"{VAL}.temperature=0.7, as in training, because {VAL}.do_sample=true"]
    refused(finish, {f"{VAL}.n": 4}, f"{VAL}.n=4 gives equal responses", f"{VAL}.do_sample=true")
    refused(finish, {f"{VAL}.do_sample": True, f"{VAL}.temperature": 0}, "sampling needs more than 0")
    _, notices = finish({f"{VAL}.temperature": 0.6})
    assert notices == [f"no effect: {VAL}.temperature ({VAL}.do_sample=false takes the likeliest token)"]


# Rows, rewards, trainer


def test_an_empty_path_of_a_reward_function_is_no_path(finish):
    config, _ = finish({"custom_reward_function.path": ""})
    assert config.custom_reward_function.path is None


def test_settings_that_go_together(finish):
    refused(finish, {"data.dataset_weights": [0.5, 0.5]}, "2 weights for 1 files")
    refused(finish, {"data.dataset_weights": [0.0]}, "not all 0")
    refused(finish, {"data.curriculum.key": "difficulty"}, "data.curriculum.key is set without data.curriculum.stages")
    refused(finish, {"data.custom_cls.name": "Mine"}, "data.custom_cls.name is set without data.custom_cls.path")
    refused(finish, {"custom_reward_function.name": "f"}, "custom_reward_function.path", "name the file")
    empty = {"custom_reward_function.name": "f", "custom_reward_function.path": ""}
    refused(finish, empty, "without custom_reward_function.path")
    refused(finish, {"reward_manager.source": "importlib"}, "needs reward_manager.module.path")
    refused(finish, {"reward_manager.module.path": "m.py"}, "set reward_manager.source=importlib")
    refused(
        finish,
        {"reward_manager.name": "other", "reward_model.reward_manager": "naive"},
        "reward_manager.name=other and reward_model.reward_manager=naive",
    )
    finish({"reward_manager.source": "importlib", "reward_manager.module.path": "m.py", "reward_manager.name": "M"})


def test_the_run(finish):
    assert finish({"trainer.project_name": "p", "trainer.run_name": "e"})[0].trainer.default_local_dir == "outputs/p/e"
    refused(finish, {"trainer.save_freq": 0}, "trainer.save_freq=0", "-1 for never")
    refused(finish, {"trainer.resume_mode": "resume_path"}, "needs trainer.resume_from_path")
    refused(finish, {"trainer.resume_mode": "disable", "trainer.resume_from_path": "x"}, "resume_mode=resume_path")
    refused(finish, {"trainer.val_only": True}, "trainer.val_only=true needs data.val_files")
    refused(finish, {"trainer.max_critic_ckpt_to_keep": 2}, "max_critic_ckpt_to_keep=2", "holds actor and critic")
    refused(finish, {f"{ACTOR}.optim.betas": [0.9]}, f"{ACTOR}.optim.betas=[0.9]", "two numbers")
    config, notices = finish({"trainer.resume_from_path": "x", "trainer.test_freq": 5})
    assert config.trainer.resume_mode == "resume_path"
    assert notices == [
        "no validation: data.val_files is not set (trainer.test_freq has no effect)",
        "trainer.resume_mode=resume_path, because trainer.resume_from_path is set",
    ]


def sft(**data):
    config = SFTConfig()
    config.data.train_files, config.model.path = ["~/a.parquet"], "m"
    for name, value in data.items():
        setattr(config.data, name, value)
    return config


def test_sft():
    config = sft()
    assert finalise_sft(config, frozenset()) == []
    assert config.data.train_files == [str(Path.home() / "a.parquet")]
    assert config.trainer.default_local_dir == "outputs/burnish/sft"  # not that of `burnish ppo`
    with pytest.raises(ConfigError, match="data.prompt_key and data.response_key go together"):
        finalise_sft(sft(prompt_key="question"), frozenset())
    with pytest.raises(ConfigError, match="keep one of them"):
        finalise_sft(sft(prompt_key="q", response_key="a"), frozenset({"data.messages_key"}))
    with pytest.raises(ConfigError, match="data.train_files and model.path must be set"):
        finalise_sft(SFTConfig(), frozenset())


def test_augmentation_keys_without_the_switch_are_reported(finish):
    _, said = finish({"data.augment.share": 0.3}, needs=CRITIC)
    assert "data.augment.share has no effect, because data.augment.enable is false" in said
    _, said = finish({"data.augment.share": 0.3, "data.augment.enable": True}, needs=CRITIC)
    assert not any("augment" in line for line in said)


GDPO = {"algorithm.adv_estimator": "gdpo", "algorithm.gdpo_reward_keys": ["a"]}
LOSS, SANDBOX = f"{ACTOR}.policy_loss", "reward_model.sandbox"


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({f"{LOSS}.loss_mode": "clip_cov", f"{LOSS}.clip_cov_lb": 9}, ["clip_cov_lb=9", "clip_cov_ub=5"]),
        (
            GDPO | {"algorithm.gdpo_reward_keys": None, "algorithm.gdpo_reward_weights": [1]},
            ["needs algorithm.gdpo_reward_k"],
        ),
        (GDPO | {"algorithm.gdpo_reward_weights": [1, 2]}, ["has 2 weights for the 1", "one for each"]),
        (GDPO | {"algorithm.gdpo_reward_weights": [0]}, ["gdpo_reward_weights=[0.0]", "not all 0"]),
        (GDPO | {"algorithm.use_kl_in_reward": True}, ["use_kl_in_reward", "gdpo_reward_keys", "use_kl_loss"]),
        (
            GDPO | {"algorithm.overlong_buffer.enable": True, "algorithm.overlong_buffer.len": 2},
            ["overlong_buffer", "gdpo_reward_keys", "overlong_reward"],
        ),
        ({f"{SANDBOX}.backend": "sandbox_fusion"}, [f"{SANDBOX}.backend=sandbox_fusion", f"{SANDBOX}.url=http://"]),
        ({f"{SANDBOX}.url": "host/run"}, ["url=host/run", "http://"]),
        (
            {f"{SANDBOX}.backend": "local", f"{SANDBOX}.url": "http://host/run_code"},
            [f"{SANDBOX}.url=http://host/run_code", f"{SANDBOX}.backend=local", "keep one"],
        ),
    ],
)
def test_keys_that_contradict_each_other_are_refused(finish, keys, parts):
    refused(finish, keys, *parts, needs=Needs(groups=True, reward_components=True) if "gdpo" in str(keys) else None)


# What happens around sampling

FILTER, OVERLONG = "algorithm.filter_groups", "algorithm.overlong_buffer"
FILTERED = {f"{FILTER}.enable": True, "data.train_batch_size": 16}


def test_dropping_groups_needs_groups(finish):
    """Whatever the estimator: gae compares nothing, but the filter does."""
    config, notices = finish(FILTERED, CRITIC)
    assert config.actor_rollout_ref.rollout.n == 4
    assert f"{ROLLOUT}.n=4: {FILTER} compares the responses to one prompt, and none was asked for" in notices
    assert finish({**FILTERED, f"{ROLLOUT}.n": 2}, CRITIC)[0].actor_rollout_ref.rollout.n == 2
    refused(finish, {**FILTERED, f"{ROLLOUT}.n": 1}, f"{ROLLOUT}.n=1: {FILTER}.enable=true compares", needs=CRITIC)
    refused(
        finish, {**FILTERED, f"{ROLLOUT}.do_sample": False}, "4 equal responses", f"{FILTER}.enable=true has nothing"
    )


def test_rounds_that_can_never_fill_the_batch(finish):
    rounds = {**FILTERED, "data.gen_batch_size": 5, f"{FILTER}.max_num_gen_batches": 3}
    refused(
        finish, rounds, "max_num_gen_batches=3 rounds of data.gen_batch_size=5 prompts never fill", "=16", "=0 for no"
    )
    finish({**rounds, f"{FILTER}.max_num_gen_batches": 4})
    finish({**rounds, f"{FILTER}.max_num_gen_batches": 0})


def test_filter_keys_are_reported_where_it_is_off(finish):
    said = f"unused: {FILTER}.max_num_gen_batches, {FILTER}.metric ({FILTER}.enable is false)"
    keys = {f"{FILTER}.metric": "score", f"{FILTER}.max_num_gen_batches": 3}
    assert said in finish(keys)[1]
    assert said in finish(keys | {f"{FILTER}.enable": False})[1]
    assert not any(
        FILTER in line and "unused" in line for line in finish(keys | FILTERED | {"data.gen_batch_size": 8})[1]
    )


@pytest.mark.parametrize("kl", [{"algorithm.use_kl_in_reward": True}, {"algorithm.kl_ctrl.kl_coef": 0.1}])
def test_groups_are_not_chosen_by_a_reward_that_is_not_known_yet(finish, kl):
    keys = {**FILTERED, f"{FILTER}.metric": "seq_final_reward"}
    finish(keys)
    refused(finish, keys | kl, "seq_final_reward with a KL term in the reward", f"{FILTER}.metric=seq_reward")
    finish({**keys, **kl, f"{FILTER}.metric": "seq_reward"})


@pytest.mark.parametrize("length", [0, 513])
def test_the_overlong_penalty_needs_room_to_grow(finish, length):
    keys = {f"{OVERLONG}.enable": True, f"{OVERLONG}.len": length}
    refused(finish, keys, f"{OVERLONG}.len={length}", "data.max_response_length=512", "from 1 to 512")
    finish({**keys, f"{OVERLONG}.len": 512})


def test_the_limit_of_the_penalty_is_the_one_the_rollout_names(finish):
    keys = {f"{OVERLONG}.enable": True, f"{OVERLONG}.len": 100, f"{ROLLOUT}.response_length": 99}
    refused(finish, keys, "data.max_response_length=99")


def test_penalty_keys_are_reported_where_it_is_off(finish):
    said = f"unused: {OVERLONG}.len, {OVERLONG}.penalty_factor ({OVERLONG}.enable is false)"
    keys = {f"{OVERLONG}.len": 16, f"{OVERLONG}.penalty_factor": 0.5}
    assert said in finish(keys)[1]
    assert not any(OVERLONG in line for line in finish(keys | {f"{OVERLONG}.enable": True})[1])


def test_a_greedy_baseline_needs_samples_that_are_not_greedy(finish):
    baseline = Needs(greedy_baseline=True)
    assert finish({"algorithm.adv_estimator": "remax"}, baseline)[0].actor_rollout_ref.rollout.n == 1
    keys = {"algorithm.adv_estimator": "remax", f"{ROLLOUT}.do_sample": False}
    refused(finish, keys, f"{ROLLOUT}.do_sample=false", "adv_estimator=remax", "nothing to learn", needs=baseline)


@pytest.mark.parametrize(
    ("keys", "unused"),
    [
        ({"algorithm.adv_estimator": "rloo", "algorithm.gamma": 0.9}, "algorithm.gamma"),
        ({"algorithm.adv_estimator": "opo", "algorithm.reward_gt_coef": 2.0}, "algorithm.reward_gt_coef"),
        ({f"{ACTOR}.policy_loss.loss_mode": "gpg", f"{ACTOR}.clip_ratio_c": 5.0}, f"{ACTOR}.clip_ratio_c"),
        ({f"{ACTOR}.policy_loss.tau_pos": 2.0}, f"{ACTOR}.policy_loss.tau_pos"),
    ],
)
def test_numbers_of_another_algorithm_are_named(finish, keys, unused):
    [notice] = [line for line in finish(keys)[1] if line.startswith("unused")]
    assert notice.startswith(f"unused: {unused} (") and "does not read it" in notice


PF_PPO, KL_CTRL = "algorithm.pf_ppo", "algorithm.kl_ctrl"


@pytest.mark.parametrize(
    ("keys", "unused", "read"),
    [
        (
            {f"{PF_PPO}.reweight_method": "max_min", f"{PF_PPO}.weight_pow": 3.0},
            f"unused: {PF_PPO}.reweight_method, {PF_PPO}.weight_pow ({PF_PPO}.enable is false)",
            {f"{PF_PPO}.enable": True, f"{PF_PPO}.reweight_method": "pow"},
        ),
        (
            {f"{PF_PPO}.enable": True, f"{PF_PPO}.reweight_method": "max_min", f"{PF_PPO}.weight_pow": 3.0},
            f"unused: {PF_PPO}.weight_pow ({PF_PPO}.reweight_method=max_min has no exponent)",
            {f"{PF_PPO}.reweight_method": "pow"},
        ),
        (
            {"algorithm.use_kl_in_reward": True, f"{KL_CTRL}.target_kl": 0.2, f"{KL_CTRL}.horizon": 5},
            f"unused: {KL_CTRL}.target_kl, {KL_CTRL}.horizon ({KL_CTRL}.type is fixed)",
            {f"{KL_CTRL}.type": "adaptive"},
        ),
        (
            {f"{KL_CTRL}.kl_coef": 0.1, f"{KL_CTRL}.horizon": 5},
            f"unused: {KL_CTRL}.horizon ({KL_CTRL}.type is fixed)",
            {f"{KL_CTRL}.type": "adaptive"},
        ),
    ],
)
def test_numbers_that_a_switch_of_theirs_leaves_unread_are_named(finish, keys, unused, read):
    assert [line for line in finish(keys)[1] if line.startswith("unused")] == [unused]
    assert not [line for line in finish(keys | read)[1] if line.startswith("unused")]


@pytest.mark.parametrize("name", ["clip_cov_ratio", "kl_cov_ratio"])
def test_a_share_of_no_tokens_is_refused(finish, name):
    refused(finish, {f"{ACTOR}.policy_loss.{name}": 0}, f"policy_loss.{name}=0", "more than 0")
    finish({f"{ACTOR}.policy_loss.{name}": 1})


@pytest.mark.parametrize("needs", [Needs(), Needs(critic=True)])
def test_several_greedy_responses_are_the_same_one(finish, needs):
    keys = {f"{ROLLOUT}.n": 3, f"{ROLLOUT}.do_sample": False}
    refused(finish, keys, f"{ROLLOUT}.n=3 gives equal responses without sampling", "do_sample=false", needs=needs)


def test_keys_of_a_custom_algorithm_are_not_reported_as_unused(finish):
    keys = {"algorithm.adv_estimator": "mine:mine", "algorithm.gamma": 0.9, f"{ACTOR}.policy_loss.loss_mode": "my:loss"}
    _, notices = finish({**keys, f"{ACTOR}.policy_loss.tau_pos": 2.0})
    assert not [line for line in notices if line.startswith("unused")]


def test_loss_with_its_own_aggregation_is_reported(finish):
    keys = {f"{ACTOR}.policy_loss.loss_mode": "gspo", f"{ACTOR}.loss_agg_mode": "token-sum"}
    [notice] = [line for line in finish(keys)[1] if "loss_agg_mode" in line]
    assert "for entropy and KL terms only: the policy loss gspo is always seq-mean-token-mean" in notice


def test_keys_that_the_hf_engine_ignores_are_reported(finish):
    keys = {f"{ROLLOUT}.{name}": False for name in ("free_cache_engine", "enable_chunked_prefill", "enforce_eager")}
    assert not any("engine" in line for line in finish(keys)[1])
    said = [line for line in finish(keys | {f"{ROLLOUT}.name": "hf"})[1] if "engine" in line]
    assert said == [
        f"no effect: {ROLLOUT}.enable_chunked_prefill, {ROLLOUT}.free_cache_engine (the hf engine keeps no KV pool)",
        f"no effect: {ROLLOUT}.enforce_eager (the hf engine uses no CUDA graphs)",
    ]
