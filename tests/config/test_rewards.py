"""Scoring: the keys of process reward model and reward model, limits that follow the manager, where programs run."""

from functools import partial

import pytest

from burnish.config import EvalConfig, Needs
from burnish.config.checks import check_model
from burnish.config.finalise import finalise_eval
from burnish.config.memory import estimate_memory
from burnish.config.plan import plan_micro_batches, plan_numbers
from burnish.config.reward import RewardConfig
from burnish.config.rules.scoring import limits
from tests.config.conftest import refused, told
from tests.config.test_plan import facts_of, hows, value

PRIME, GROUPS = Needs(groups=True, process_reward=True), Needs(groups=True)
GRPO = {"algorithm.adv_estimator": "grpo"}
ACTOR = "actor_rollout_ref.actor"
KEYS = {"algorithm.adv_estimator": "prime", "data.train_batch_size": 16, f"{ACTOR}.ppo_mini_batch_size": 4}
ON = {"reward_model.enable": True, "reward_model.model.path": "some/rm"}
KEY, MICRO = "reward_model.model", "reward_model.micro_batch_size_per_gpu"
BATCH = {"data.train_batch_size": 16, f"{ACTOR}.ppo_mini_batch_size": 4}
WORTHLESS = {"algorithm.reward_gt_coef": 0, "algorithm.reward_dpo_coef": 0}

facts = partial(facts_of, model_type="qwen2", context=None)
POLICY = {"actor_rollout_ref.model": facts()}


def test_what_is_left_open_follows_the_actor_and_what_is_set_stays(finish):
    keys = {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 4096}
    keys["actor_rollout_ref.model.tokenizer_path"] = "some/tokenizer"
    config, _ = finish(KEYS | keys, PRIME)
    section = config.process_reward
    assert (section.enable, section.mini_batch_size) == (True, 4)
    assert (section.use_dynamic_bsz, section.max_token_len_per_gpu) == (True, 4096)
    assert (section.model.path, section.model.tokenizer_path) == ("some/model", "some/tokenizer")
    keys |= {"process_reward.mini_batch_size": 8, "process_reward.use_dynamic_bsz": False}
    keys |= {"process_reward.max_token_len_per_gpu": 99, "process_reward.model.path": "~/prm"}
    section = finish(KEYS | keys, PRIME)[0].process_reward
    assert (section.mini_batch_size, section.use_dynamic_bsz, section.max_token_len_per_gpu) == (8, False, 99)
    assert section.model.path.endswith("/prm") and not section.model.path.startswith("~")
    assert section.model.tokenizer_path is None, "a model of its own has a tokenizer of its own"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"process_reward.enable": False}, "process_reward.enable=false: algorithm.adv_estimator=prime needs"),
        ({"process_reward.mini_batch_size": 3}, "is not a multiple of process_reward.mini_batch_size=3: .* 2 and 4"),
        ({"process_reward.mini_batch_size": 32}, "process_reward.mini_batch_size=32 is more than data.train_batch"),
        (WORTHLESS, "algorithm.reward_gt_coef=0 with algorithm.reward_dpo_coef=0: every advantage would be 0"),
        ({"process_reward.optim.betas": [0.9]}, r"process_reward.optim.betas=\[0.9\]: must be two numbers"),
    ],
)
def test_what_cannot_work_is_refused(finish, keys, message):
    refused(message, finish, KEYS | keys, PRIME)
    for name in WORTHLESS:  # one of both rewards is enough
        assert finish(KEYS | {name: 0}, PRIME)[0].process_reward.enable


def test_keys_that_are_not_read_are_reported(finish):
    config, notices = finish(KEYS | GRPO | {"process_reward.beta": 3, "process_reward.enable": True}, GROUPS)
    assert config.process_reward.enable is False
    why = "algorithm.adv_estimator=grpo has no process reward model"
    assert told(notices, "process_reward") == [f"unused: process_reward.beta, process_reward.enable ({why})"]
    keys = {"process_reward.use_dynamic_bsz": True, "process_reward.micro_batch_size_per_gpu": 2}
    assert told(finish(KEYS | keys, PRIME)[1], "no effect: process_reward.micro_batch_size_per_gpu")


def test_memory_and_plan_count_the_model_and_its_start(finish):
    low = estimate_memory(finish(KEYS | {"process_reward.model.dtype": "bf16"}, PRIME)[0], POLICY, 2)
    assert low.process_reward == 16_000_000  # 2 + 2, masters 4, moments 8
    assert low.most("gradients") == 6_000_000  # the larger of 4 for the actor and 4 + 2 here
    lines = plan_numbers(finish(KEYS | {"process_reward.mini_batch_size": 8}, PRIME)[0], 100, POLICY)
    assert value(lines, "process reward optimiser steps per step") == "2"
    assert value(lines, "memory: process reward model") == "15.3 MiB"
    without = plan_numbers(finish(KEYS, GROUPS)[0], 100, POLICY)
    assert not [line for line in without if "process reward" in line.name]


@pytest.mark.parametrize(
    ("section", "keys", "needs", "planned", "without"),
    [
        ("process_reward", KEYS, PRIME, 16, (KEYS, GROUPS)),
        ("reward_model", BATCH | ON, Needs(), 4, (BATCH, Needs())),
    ],
)
def test_micro_batches_are_planned(finish, section, keys, needs, planned, without):
    name, three = f"{section}.micro_batch_size_per_gpu", {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 3}
    for further, size in (({}, planned), ({name: 5}, 5), ({f"{section}.use_dynamic_bsz": True}, None)):
        config, _ = finish(keys | three | further, needs)
        notice = plan_micro_batches(config, POLICY, 10**15)[-1]
        assert getattr(config, section).micro_batch_size_per_gpu == size and (name in notice) is (size == planned)
    config, _ = finish(without[0] | three, without[1])
    assert name not in plan_micro_batches(config, POLICY, 10**15)[-1]


def test_it_is_a_model_of_the_run_where_it_is_enabled_and_needs_a_path(finish):
    assert list(finish(ON)[0].models) == ["actor_rollout_ref.model", KEY]
    keys = {"reward_model.model.path": "some/rm", "reward_model.rule_weight": 0.5, "reward_model.sandbox.timeout": 3}
    config, notices = finish(keys | {MICRO: 4})
    assert list(config.models) == ["actor_rollout_ref.model"]
    (said,) = told(notices, "reward_model.enable is false")
    assert said.startswith("unused: ") and "sandbox" not in said
    assert all(key in said for key in ("reward_model.model.path", "reward_model.rule_weight", MICRO))
    keys = {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 4096, "reward_model.batch_size": 8}
    config, notices = finish(ON | keys)
    section = config.reward_model
    assert (section.use_dynamic_bsz, section.forward_max_token_len_per_gpu) == (True, 4096)
    assert told(notices, f"no effect: {MICRO}")
    refused(r"reward_model\.enable=true needs reward_model\.model\.path", finish, {"reward_model.enable": True})


@pytest.mark.parametrize(("name", "weight"), [("rule_weight", "inf"), ("model_weight", "-inf")])
def test_weights_are_finite(finish, name, weight):
    refused(rf"reward_model\.{name}={weight}: a weight is finite", finish, ON | {f"reward_model.{name}": float(weight)})
    assert getattr(finish(ON | {f"reward_model.{name}": -0.5})[0].reward_model, name) == -0.5


def test_keys_of_a_reward_model_that_are_not_read_are_reported(finish):
    tokens, checkpointing = "reward_model.forward_max_token_len_per_gpu", f"{KEY}.enable_gradient_checkpointing"
    notices = finish(ON | {tokens: 512, checkpointing: True})[1]
    assert told(notices, f"unused: {tokens} (reward_model.use_dynamic_bsz is false")
    assert told(notices, f"unused: {checkpointing} (the reward model is not trained)")
    assert not told(finish(ON | {tokens: 512, "reward_model.use_dynamic_bsz": True})[1] + finish(ON)[1], "unused")


def test_only_its_weights_count(finish):
    without = estimate_memory(finish(BATCH)[0], POLICY, 2)
    memory = estimate_memory(finish(BATCH | ON)[0], POLICY | {KEY: facts(5_000_000, vocab=99_000)}, 2)
    assert without.reward_model == 0 and memory.reward_model == 5_000_000 * 4
    assert memory.always == without.always + memory.reward_model
    for name in ("gradients", "logits", "activations"):
        assert memory.most(name) == without.most(name), f"{name}: no optimiser, no logits, no generation"
    assert memory.kv_cache == without.kv_cache
    half = estimate_memory(finish(BATCH | ON | {f"{KEY}.dtype": "bf16"})[0], POLICY | {KEY: facts(5_000_000)}, 2)
    assert half.reward_model == 5_000_000 * 2
    wide = estimate_memory(finish(BATCH | ON)[0], POLICY | {KEY: facts(hidden=64 * 128)}, 2)
    assert wide.most("activations") > without.most("activations"), "a pass of a much larger model"
    lines = plan_numbers(finish(BATCH | ON)[0], 100, POLICY | {KEY: facts(2**20)})
    assert value(lines, "memory: reward model") == "4.0 MiB" and "not trained" in hows(lines)["memory: reward model"]
    assert not [line for line in plan_numbers(finish(BATCH)[0], 100, POLICY) if "reward model" in line.name]


def test_short_context_is_reported_and_not_refused(finish):
    config, _ = finish(ON)  # 512 + 512 tokens
    assert check_model(config, KEY, facts(context=1024)) == check_model(config, KEY, facts(context=None)) == []
    (notice,) = check_model(config, KEY, facts(context=1000))
    said = "the reward model reads 1000 tokens (the context of reward_model.model.path=some/rm), of up to 1024: what"
    assert notice == f"{said} is longer loses its start"
    config, _ = finish(ON | {"reward_model.max_length": 800})
    (notice,) = check_model(config, KEY, facts(context=None))
    assert "800 tokens (reward_model.max_length)" in notice
    said = r"reward_model\.max_length=800: .*some/rm has a context of 700; lower it"
    refused(said, check_model, config, KEY, facts(context=700))


SERVER = "http://host:8080/run_code"


@pytest.mark.parametrize(("manager", "workers", "seconds"), [("naive", 2, 30), ("prime", 64, 300), ("dapo", 2, 30)])
def test_limits_follow_the_manager(finish, manager, workers, seconds):
    config, _ = finish(GRPO | {"reward_model.reward_manager": manager})
    assert (config.reward.num_workers, config.reward.timeout) == (workers, seconds)


def test_limits_that_are_set_stay_and_isolation_is_the_servers_own(finish):
    config, _ = finish(GRPO | {"reward_manager.name": "prime", "reward.num_workers": 3, "reward.timeout": 7})
    assert (config.reward.num_workers, config.reward.timeout) == (3, 7)
    assert limits(RewardConfig(retries=4)).retries == 4
    assert (limits(RewardConfig()).num_workers, limits(RewardConfig()).timeout) == (2, 30)
    assert config.reward_model.sandbox.backend == "local"
    keys = {"reward_model.sandbox.url": SERVER, "reward_model.sandbox.allow_unsafe": True}
    config, notices = finish(GRPO | keys)
    assert config.reward_model.sandbox.backend == "sandbox_fusion"
    assert told(notices, "reward_model.sandbox.allow_unsafe", "server")


def test_evaluation_has_the_same_rules():
    config = EvalConfig()
    config.data.path, config.reward_model.sandbox.url = "out.parquet", SERVER
    finalise_eval(config, frozenset())
    assert config.reward_model.sandbox.backend == "sandbox_fusion"
    assert (config.reward.num_workers, config.reward.timeout) == (2, 30)
    config.reward_model.sandbox.url = None
    refused("needs the address of the server", finalise_eval, config, frozenset())
