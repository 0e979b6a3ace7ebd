"""Derived defaults and what does not go together."""

from pathlib import Path

import pytest

from burnish.algorithms import advantages
from burnish.algorithms.needs import needs_of
from burnish.config import Needs, SFTConfig, finalise, finalise_sft
from burnish.config.algorithm import ESTIMATORS
from burnish.config.rules.batch import fit_to_rows
from burnish.errors import ConfigError
from tests.config.conftest import refused

GROUPS, CRITIC, GREEDY = Needs(groups=True), Needs(critic=True), Needs(greedy_baseline=True)
ROLLOUT, ACTOR, VAL = "actor_rollout_ref.rollout", "actor_rollout_ref.actor", "actor_rollout_ref.rollout.val_kwargs"
BATCH, GEN, MINI = "data.train_batch_size", "data.gen_batch_size", f"{ACTOR}.ppo_mini_batch_size"
ESTIMATOR, CUSTOM, MANAGER = "algorithm.adv_estimator", "custom_reward_function", "reward_manager"
FUNCTIONS = f"{CUSTOM}.functions"
CHOSEN = "reward_model.reward_manager"
LOSS, SANDBOX = f"{ACTOR}.policy_loss", "reward_model.sandbox"
FILTER, OVERLONG = "algorithm.filter_groups", "algorithm.overlong_buffer"
PF_PPO, KL_CTRL = "algorithm.pf_ppo", "algorithm.kl_ctrl"
FILTERED = {f"{FILTER}.enable": True, BATCH: 16}
ROUNDS = FILTERED | {GEN: 5, f"{FILTER}.max_num_gen_batches": 3}
FINAL = FILTERED | {f"{FILTER}.metric": "seq_final_reward"}
PENALTY, GREEDILY = {f"{OVERLONG}.enable": True}, {f"{ROLLOUT}.do_sample": False}
GDPO = {ESTIMATOR: "gdpo", "algorithm.gdpo_reward_keys": ["a"]}


def test_missing_required_keys_are_named(make):
    built = make()
    said = "data.train_files and actor_rollout_ref.model.path must be set, .*data.train_files=train.parquet"
    refused(said, finalise, built.config, built.explicit, Needs())


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


def test_finalising_twice_changes_nothing_and_home_folders_are_expanded(finish):
    config, _ = finish({f"{KL_CTRL}.kl_coef": 0.1}, CRITIC)
    before = repr(config)
    finalise(config, frozenset({"data.train_files", f"{KL_CTRL}.kl_coef"}), CRITIC)
    assert repr(config) == before
    keys = {"data.val_files": ["~/v.parquet"], "trainer.default_local_dir": "~/out", "critic.model.path": "~/c"}
    config, home = finish(keys)[0], Path.home()
    assert config.data.val_files == [str(home / "v.parquet")]
    assert (config.trainer.default_local_dir, config.critic.model.path) == (str(home / "out"), str(home / "c"))


@pytest.mark.parametrize(
    ("keys", "said"),  # words of the message, in any order, between dots
    [
        # batch sizes
        (GREEDILY | {ESTIMATOR: "grpo"}, "do_sample=false gives 4 equal responses"),
        ({f"{ROLLOUT}.n_agent": 5, f"{ROLLOUT}.n": 4}, "n=4 … n_agent=5 … keep one"),
        ({BATCH: 500}, f"{BATCH}=500 is not a multiple of {MINI}=256 (the default): … are 250 and 500; set {MINI} to"),
        ({MINI: 3}, f"{BATCH}=1024 (the default) is not a multiple of {MINI}=3: "),
        ({BATCH: 16, MINI: 5}, f"{BATCH}=16 … ppo_mini_batch_size=5 … are 4 and 8"),
        ({BATCH: 16, MINI: 32}, f"ppo_mini_batch_size=32 is more than {BATCH}=16"),
        ({BATCH: 16, "critic.ppo_mini_batch_size": 3}, "critic.ppo_mini_batch_size=3 … are 2 and 4"),
        ({BATCH: 256, GEN: 512}, f"{GEN}=512 with {BATCH}=256 … {FILTER}.enable=true"),
        ({**FILTERED, f"{ROLLOUT}.n": 1}, f"{ROLLOUT}.n=1: {FILTER}.enable=true compares"),
        (FILTERED | GREEDILY, f"4 equal responses … {FILTER}.enable=true has nothing"),
        (ROUNDS, f"max_num_gen_batches=3 rounds of {GEN}=5 prompts never fill … =16 … =0 for no"),
        (FINAL | {"algorithm.use_kl_in_reward": True}, "seq_final_reward with a KL term in the reward"),
        (FINAL | {f"{KL_CTRL}.kl_coef": 0.1}, f"seq_final_reward with a KL term … {FILTER}.metric=seq_reward"),
        # critic and loss
        ({"critic.enable": False}, "critic.enable=false … adv_estimator=gae needs a critic"),
        ({ESTIMATOR: "grpo", "trainer.critic_warmup": 2}, "trainer.critic_warmup=2 … would train nothing"),
        ({f"{LOSS}.loss_mode": "clip_cov", f"{LOSS}.clip_cov_lb": 9}, "clip_cov_lb=9 … clip_cov_ub=5"),
        ({ESTIMATOR: "gdpo", "algorithm.gdpo_reward_weights": [1]}, "needs algorithm.gdpo_reward_k"),
        (GDPO | {"algorithm.gdpo_reward_weights": [1, 2]}, "has 2 weights for the 1 … one for each"),
        (GDPO | {"algorithm.gdpo_reward_weights": [0]}, "gdpo_reward_weights=[0.0] … not all 0"),
        (GDPO | {"algorithm.use_kl_in_reward": True}, "use_kl_in_reward … gdpo_reward_keys … use_kl_loss"),
        (GDPO | PENALTY | {f"{OVERLONG}.len": 2}, "overlong_buffer … gdpo_reward_keys … overlong_reward"),
        # lengths and sampling
        ({"data.max_response_length": 9, f"{ROLLOUT}.response_length": 7}, "length=9 … response_length=7 … keep one"),
        ({f"{ROLLOUT}.max_model_len": 1000}, "max_model_len=1000 … = 1024"),
        ({f"{ROLLOUT}.temperature": 0}, f"{ROLLOUT}.temperature=0 … do_sample=false"),
        ({f"{VAL}.n": 4}, f"{VAL}.n=4 gives equal responses … {VAL}.do_sample=true"),
        (GREEDILY | {f"{ROLLOUT}.n": 3}, f"{ROLLOUT}.n=3 gives equal responses without sampling … do_sample=false"),
        (GREEDILY | {ESTIMATOR: "remax"}, f"{ROLLOUT}.do_sample=false … adv_estimator=remax … nothing to learn"),
        (PENALTY, f"{OVERLONG}.len=0 … data.max_response_length=512 … from 1 to 512"),
        (PENALTY | {f"{OVERLONG}.len": 513}, f"{OVERLONG}.len=513 … from 1 to 512"),
        (PENALTY | {f"{OVERLONG}.len": 100, f"{ROLLOUT}.response_length": 99}, "data.max_response_length=99"),
        # rows, rewards, the run
        ({"data.dataset_weights": [0.5, 0.5]}, "2 weights for 1 files"),
        *(({"data.dataset_weights": [weight]}, f"=[{weight}]: … not all 0") for weight in (0.0, -1.0, float("nan"))),
        ({"data.curriculum.key": "hard"}, "data.curriculum.key is set without data.curriculum.stages"),
        ({"data.custom_cls.name": "Mine"}, "data.custom_cls.name is set without data.custom_cls.path"),
        ({f"{CUSTOM}.name": "f"}, f"{CUSTOM}.path … name the file"),
        ({f"{CUSTOM}.name": "f", f"{CUSTOM}.path": ""}, f"without {CUSTOM}.path"),
        ({f"{MANAGER}.source": "importlib"}, f"needs {MANAGER}.module.path"),
        ({f"{MANAGER}.module.path": "m.py"}, f"set {MANAGER}.source=importlib"),
        ({f"{MANAGER}.name": "other", CHOSEN: "dapo"}, f"{MANAGER}.name=other and {CHOSEN}=dapo … keep one"),
        ({f"{SANDBOX}.backend": "sandbox_fusion"}, f"{SANDBOX}.backend=sandbox_fusion … {SANDBOX}.url=http:"),
        ({f"{SANDBOX}.url": "host/run"}, "url=host/run … http://"),
        ({f"{SANDBOX}.backend": "local", f"{SANDBOX}.url": "http://h"}, "url=http://h … backend=local … keep one"),
        ({"trainer.save_freq": 0}, "trainer.save_freq=0 … -1 for never"),
        ({"trainer.resume_mode": "resume_path"}, "needs trainer.resume_from_path"),
        ({"trainer.resume_mode": "disable", "trainer.resume_from_path": "x"}, "resume_mode=resume_path"),
        ({"trainer.val_only": True}, "trainer.val_only=true needs data.val_files"),
        ({"trainer.max_critic_ckpt_to_keep": 2}, "max_critic_ckpt_to_keep=2 … holds actor and critic"),
        ({f"{ACTOR}.optim.betas": [0.9]}, f"{ACTOR}.optim.betas=[0.9] … two numbers"),
    ],
)
def test_what_cannot_work_is_refused(make, finish, keys, said):
    with pytest.raises(ConfigError) as error:
        finish(keys, needs_of(make(keys).config))
    for part in said.split(" … "):
        assert part in str(error.value)


@pytest.mark.parametrize("estimator", [name for name in ESTIMATORS if advantages.needs_of(name).groups])
def test_groups_of_one_are_refused(finish, estimator):
    keys = {ESTIMATOR: estimator, f"{ROLLOUT}.n": 1}
    refused(rf"{ROLLOUT}\.n=1.*{estimator}.*at least 2.*leave", finish, keys, GROUPS)


@pytest.mark.parametrize(
    "keys",
    [
        {BATCH: 256, GEN: 256},
        ROUNDS | {f"{FILTER}.max_num_gen_batches": 4},
        ROUNDS | {f"{FILTER}.max_num_gen_batches": 0},
        FINAL,
        FINAL | {"algorithm.use_kl_in_reward": True, f"{FILTER}.metric": "seq_reward"},
        FINAL | {f"{KL_CTRL}.kl_coef": 0.1, f"{FILTER}.metric": "seq_reward"},
        {f"{OVERLONG}.enable": True, f"{OVERLONG}.len": 512},
        {f"{MANAGER}.source": "importlib", f"{MANAGER}.module.path": "m.py", f"{MANAGER}.name": "M"},
    ],
)
def test_neighbours_of_what_is_refused_are_taken(finish, keys):
    finish(keys)


@pytest.mark.parametrize(
    ("keys", "needs", "n", "said"),
    [
        ({ESTIMATOR: "grpo"}, GROUPS, 4, f"{ROLLOUT}.n=4: grpo compares the responses to one prompt, and none was"),
        ({f"{ROLLOUT}.n": 8}, GROUPS, 8, None),
        ({f"{ROLLOUT}.n_agent": 5}, GROUPS, 5, None),
        ({ESTIMATOR: "remax"}, GREEDY, 1, None),
        # Whatever the estimator: gae compares nothing, but the filter does.
        (FILTERED, CRITIC, 4, f"{ROLLOUT}.n=4: {FILTER} compares the responses to one prompt, and none was asked for"),
        ({**FILTERED, f"{ROLLOUT}.n": 2}, CRITIC, 2, None),
    ],
)
def test_groups(finish, keys, needs, n, said):
    config, notices = finish(keys, needs)
    assert config.actor_rollout_ref.rollout.n == n
    told = [notice for notice in notices if "compares" in notice]
    assert len(told) == bool(said) and all(notice.startswith(said) for notice in told)


def test_batches_rounds_passes_and_the_critic(finish):
    config, notices = finish({BATCH: 16})
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == config.critic.ppo_mini_batch_size == 16
    assert notices == [f"{MINI}=16: the whole of {BATCH}"], "a small batch shrinks the default"
    assert finish({BATCH: 256, GEN: 512, f"{FILTER}.enable": True})[0].data.gen_batch_size == 512
    keys = {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 4096}
    keys |= {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4, "critic.ppo_micro_batch_size_per_gpu": 2}
    config, notices = finish(keys | {"critic.use_dynamic_bsz": False}, CRITIC)
    assert config.actor_rollout_ref.ref.log_prob_use_dynamic_bsz is True
    assert config.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu == 4096
    assert config.critic.use_dynamic_bsz is False
    assert config.critic.forward_max_token_len_per_gpu == 4096
    assert config.critic.forward_micro_batch_size_per_gpu == 2
    assert len(notices) == 1 and notices[0].startswith(f"no effect: {ACTOR}.ppo_micro_batch_size_per_gpu")
    keys = {ESTIMATOR: "grpo", "critic.optim.lr": 1e-4, "critic.enable": True, f"{ROLLOUT}.n": 2}
    config, notices = finish(keys, GROUPS)
    assert config.critic.enable is False
    assert notices == ["unused: critic.enable, critic.optim.lr (algorithm.adv_estimator=grpo has no critic)"]


@pytest.mark.parametrize(
    ("coefficient", "switch", "section"),
    [
        (f"{KL_CTRL}.kl_coef", "algorithm.use_kl_in_reward", lambda c: c.algorithm.use_kl_in_reward),
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
    refused(f"{coefficient}=0.05 with {switch}=false", finish, {coefficient: 0.05, switch: False})


def test_clip_ranges_lengths_and_empty_paths(finish):
    actor = finish({f"{ACTOR}.clip_ratio": 0.1, f"{ACTOR}.clip_ratio_high": 0.28})[0].actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.1, 0.28)
    config, notices = finish({f"{ROLLOUT}.prompt_length": 64, f"{ROLLOUT}.response_length": 512})
    assert config.data.max_prompt_length == 64
    assert notices == [f"data.max_prompt_length=64, from {ROLLOUT}.prompt_length"]
    assert finish({f"{CUSTOM}.path": ""})[0].custom_reward_function.path is None


def test_each_of_several_reward_functions_has_all_its_fields(finish):
    keys = {
        f"{FUNCTIONS}.right.path": "~/a.py",
        f"{FUNCTIONS}.short.weight": "-0.5",
        f"{FUNCTIONS}.short.name": "length",
    }
    keys |= {f"{CUSTOM}.path": "b.py", f"{FUNCTIONS}.short.reward_kwargs.most": 8}
    right = {"path": str(Path.home() / "a.py"), "name": "right", "weight": 1.0, "reward_kwargs": {}}
    short = {"path": "b.py", "name": "length", "weight": -0.5, "reward_kwargs": {"most": 8}}
    config, _ = finish(keys | {ESTIMATOR: "gdpo"}, Needs(groups=True, reward_components=True))
    assert config.custom_reward_function.functions == {"right": right, "short": short}
    parts = config.algorithm.gdpo_reward_keys, config.algorithm.gdpo_reward_weights
    assert parts == (["right", "short"], [1.0, -0.5]), "gdpo compares each of them"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"right": "a.py"}, r"right=a.py: must be a mapping; set .*right.path and "),
        ({"right.weight": 2}, r"right.path is not set: name the file or module"),
        ({"right.path": "a.py", "right.weihgt": 2}, "unknown key '.*right.weihgt'; did you mean '.*right.weight'"),
        ({"right.path": "a.py", "right.weight": "much"}, "right.weight=much: must be a number"),
        ({"right.path": "a.py", "right.weight": "inf"}, "right.weight=inf: must be a number of at least -1e.09 and at"),
        ({"right.path": "a.py", "right.weight": 0}, "all weights are 0"),
        ({"score.path": "a.py"}, "score: use letters, digits, _ and - in the name, and none of score, "),
    ],
)
def test_several_reward_functions_that_cannot_work_are_refused(finish, keys, said):
    refused(said, finish, {f"{FUNCTIONS}.{name}": value for name, value in keys.items()})


def test_a_name_is_for_a_single_reward_function(finish):
    refused("name is for a single function", finish, {f"{FUNCTIONS}.a.path": "a.py", f"{CUSTOM}.name": "score"})


def test_sampling_in_training_and_validation(finish):
    assert finish({f"{ROLLOUT}.temperature": 0, f"{ROLLOUT}.do_sample": False})[1] == []
    config, notices = finish({f"{ROLLOUT}.top_p": 0.9, f"{ROLLOUT}.top_k": 0})
    assert config.actor_rollout_ref.rollout.top_k == -1
    assert len(notices) == 1 and notices[0].startswith(f"warning: {ROLLOUT}.top_p=0.9 excludes unlikely tokens")
    config, notices = finish({f"{VAL}.do_sample": True, f"{VAL}.n": 4, f"{ROLLOUT}.temperature": 0.7})
    assert config.actor_rollout_ref.rollout.val_kwargs.temperature == 0.7
    assert notices == [f"{VAL}.temperature=0.7, as in training, because {VAL}.do_sample=true"]


def test_the_run(finish):
    assert finish({"trainer.project_name": "p", "trainer.run_name": "e"})[0].trainer.default_local_dir == "outputs/p/e"
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
    refused("keep one of", finalise_sft, sft(prompt_key="q", response_key="a", messages_key="turns"), frozenset())
    refused("data.train_files and model.path must be set", finalise_sft, SFTConfig(), frozenset())


# Keys that are not read: (keys, what is said, keys with which it is not)
OFF = {f"{FILTER}.metric": "score", f"{FILTER}.max_num_gen_batches": 3}
FILTER_OFF = f"unused: {FILTER}.max_num_gen_batches, {FILTER}.metric ({FILTER}.enable is false)"
MAX_MIN = {f"{PF_PPO}.reweight_method": "max_min", f"{PF_PPO}.weight_pow": 3.0}
POW_PPO = {f"{PF_PPO}.enable": True}
POW = POW_PPO | {f"{PF_PPO}.reweight_method": "pow"}
REWARD_KL = {"algorithm.use_kl_in_reward": True}
GREEDY_VAL = f"{VAL}.do_sample=false takes the likeliest token"
MODE = f"{LOSS}.loss_mode"


@pytest.mark.parametrize(
    ("keys", "said", "read"),
    [
        (OFF, FILTER_OFF, FILTERED | {GEN: 8}),
        (OFF | {f"{FILTER}.enable": False}, FILTER_OFF, FILTERED | {GEN: 8}),
        ({f"{OVERLONG}.len": 16}, f"unused: {OVERLONG}.len ({OVERLONG}.enable is false)", PENALTY),
        (MAX_MIN, f"unused: {PF_PPO}.reweight_method, {PF_PPO}.weight_pow ({PF_PPO}.enable is false)", POW),
        (MAX_MIN | POW_PPO, f"unused: {PF_PPO}.weight_pow ({PF_PPO}.reweight_method=max_min has no exponent)", POW),
        (
            REWARD_KL | {f"{KL_CTRL}.target_kl": 0.2, f"{KL_CTRL}.horizon": 5},
            f"unused: {KL_CTRL}.target_kl, {KL_CTRL}.horizon ({KL_CTRL}.type is fixed)",
            {f"{KL_CTRL}.type": "adaptive"},
        ),
        ({f"{KL_CTRL}.type": "adaptive"}, f"unused: {KL_CTRL}.type (there is no KL term in the reward)", REWARD_KL),
        (
            {f"{ACTOR}.kl_loss_type": "k1"},
            f"unused: {ACTOR}.kl_loss_type (there is no KL term in the loss)",
            {f"{ACTOR}.use_kl_loss": True},
        ),
        *(
            ({ESTIMATOR: name, key: 0.9}, f"unused: {key} ({ESTIMATOR}={name} does not read it)", {ESTIMATOR: reads})
            for name, key, reads in (
                ("grpo", "algorithm.lam", "gae"),
                ("rloo", "algorithm.gamma", "mine:mine"),
                ("opo", "algorithm.reward_gt_coef", "mine:mine"),
            )
        ),
        *(
            ({MODE: name, key: 5.0}, f"unused: {key} ({MODE}={name} does not read it)", {MODE: reads})
            for name, key, reads in (
                ("gpg", f"{ACTOR}.clip_ratio_c", "vanilla"),
                ("vanilla", f"{LOSS}.tau_pos", "my:loss"),
            )
        ),
        ({f"{VAL}.temperature": 0.6}, f"no effect: {VAL}.temperature ({GREEDY_VAL})", {f"{VAL}.do_sample": True}),
        (
            {"data.augment.share": 0.3},
            "data.augment.share has no effect, because data.augment.enable is false",
            {"data.augment.enable": True},
        ),
    ],
)
def test_keys_that_a_switch_or_an_algorithm_leaves_unread_are_reported(finish, keys, said, read):
    def told(keys):
        return [line for line in finish(keys)[1] if line.startswith("unused") or "no effect" in line]

    assert told(keys) == [said] and told(keys | read) == []


def test_aggregation_of_a_loss_is_reported(finish):
    keys = {f"{LOSS}.loss_mode": "gspo", f"{ACTOR}.loss_agg_mode": "token-sum"}
    [notice] = [line for line in finish(keys)[1] if "loss_agg_mode" in line]
    assert "for entropy and KL terms only: the policy loss gspo is always seq-mean-token-mean" in notice


@pytest.mark.parametrize(
    ("keys", "rows", "sizes"),  # of the batch, of a round, and of a mini-batch of actor and critic
    [
        ({BATCH: 64}, 64, (64, 64, 64, 64)),
        ({}, 100, (100, 100, 100, 100)),
        ({}, 600, (512, 512, 256, 256)),
        ({BATCH: 64, MINI: 16}, 50, (48, 48, 16, 16)),
        ({BATCH: 64, MINI: 16}, 10, (10, 10, 10, 10)),
        ({BATCH: 64, MINI: 32, "critic.ppo_mini_batch_size": 8}, 20, (20, 20, 20, 20)),
        ({BATCH: 64, f"{FILTER}.enable": True, GEN: 128, f"{ROLLOUT}.n": 2}, 50, (50, 128, 50, 50)),
        ({BATCH: 64, "data.augment.enable": True}, 10, (64, 64, 64, 64)),
        ({BATCH: 64, "data.custom_cls.path": "m.py", "data.custom_cls.name": "M"}, 10, (64, 64, 64, 64)),
    ],
)
def test_a_batch_larger_than_the_data_is_reduced_and_that_is_reported(finish, keys, rows, sizes):
    config, _ = finish(keys, Needs(critic=True))
    before, said = config.data.train_batch_size, fit_to_rows(config, rows)
    data, actor, critic = config.data, config.actor_rollout_ref.actor, config.critic
    assert (data.train_batch_size, data.gen_batch_size) == sizes[:2]
    assert (actor.ppo_mini_batch_size, critic.ppo_mini_batch_size) == sizes[2:]
    assert bool(said) == (sizes[0] != before)
    if said:
        assert said[0] == f"{BATCH}={sizes[0]}, not {before}: there are {rows} rows to train on"
