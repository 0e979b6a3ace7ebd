"""The process reward model's keys: there where the estimator needs it, from the actor where left open, and planned."""

import pytest

from burnish.config import Needs, estimate_memory, finalise, plan_micro_batches, plan_numbers
from burnish.errors import ConfigError
from burnish.models.facts import ModelFacts

PRIME = Needs(groups=True, process_reward=True)
ACTOR = "actor_rollout_ref.actor"
KEYS = {"algorithm.adv_estimator": "prime", "data.train_batch_size": 16, f"{ACTOR}.ppo_mini_batch_size": 4}
SIZES = ModelFacts("qwen2", None, layers=4, hidden=128, heads=4, kv_heads=2, head_dim=32, intermediate=512, vocab=1000,
                   parameters=1_000_000)  # fmt: skip
FACTS = {"actor_rollout_ref.model": SIZES}


def value(lines, name):
    (line,) = [line for line in lines if line.name == name]
    return line.value


def test_what_is_left_open_follows_the_actor(finish):
    keys = {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 4096}
    keys["actor_rollout_ref.model.tokenizer_path"] = "some/tokenizer"
    config, _ = finish(KEYS | keys, PRIME)
    section = config.process_reward
    assert (section.enable, section.mini_batch_size) == (True, 4)
    assert (section.use_dynamic_bsz, section.max_token_len_per_gpu) == (True, 4096)
    assert (section.model.path, section.model.tokenizer_path) == ("some/model", "some/tokenizer")


def test_explicit_keys_are_not_overwritten(finish):
    keys = {
        "process_reward.mini_batch_size": 8,
        "process_reward.use_dynamic_bsz": True,
        "process_reward.max_token_len_per_gpu": 99,
        "process_reward.model.path": "~/prm",
        "actor_rollout_ref.model.tokenizer_path": "some/tokenizer",
    }
    section = finish(KEYS | keys, PRIME)[0].process_reward
    assert (section.mini_batch_size, section.use_dynamic_bsz, section.max_token_len_per_gpu) == (8, True, 99)
    assert section.model.path.endswith("/prm") and not section.model.path.startswith("~")
    assert section.model.tokenizer_path is None, "a model of its own has a tokenizer of its own"


def test_finalising_twice_changes_nothing(finish):
    config, _ = finish(KEYS, PRIME)
    before = repr(config)
    finalise(config, frozenset(KEYS), PRIME)
    assert repr(config) == before


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"process_reward.enable": False}, "process_reward.enable=false: algorithm.adv_estimator=prime needs"),
        ({"process_reward.mini_batch_size": 3}, "is not a multiple of process_reward.mini_batch_size=3: .* 2 and 4"),
        ({"process_reward.mini_batch_size": 32}, "process_reward.mini_batch_size=32 is more than data.train_batch"),
        (
            {"algorithm.reward_gt_coef": 0, "algorithm.reward_dpo_coef": 0},
            "algorithm.reward_gt_coef=0 with algorithm.reward_dpo_coef=0: every advantage would be 0",
        ),
        ({"process_reward.optim.betas": [0.9]}, r"process_reward.optim.betas=\[0.9\]: must be two numbers"),
    ],
)
def test_what_cannot_work_is_refused(finish, keys, message):
    with pytest.raises(ConfigError, match=message):
        finish(KEYS | keys, PRIME)


@pytest.mark.parametrize(
    ("name", "given"), [("beta", 0), ("update", "during"), ("mini_batch_size", 0), ("grad_clip", 0)]
)
def test_values_that_make_no_sense_are_refused(finish, name, given):
    with pytest.raises(ConfigError, match=f"process_reward.{name}"):
        finish(KEYS | {f"process_reward.{name}": given}, PRIME)


@pytest.mark.parametrize("name", ["reward_gt_coef", "reward_dpo_coef"])
def test_one_of_both_rewards_is_enough(finish, name):
    assert finish(KEYS | {f"algorithm.{name}": 0}, PRIME)[0].process_reward.enable


def test_an_estimator_without_it_has_none_and_says_what_is_unused(finish):
    config, notices = finish(KEYS | {"algorithm.adv_estimator": "grpo", "process_reward.mini_batch_size": 3,
                                     "process_reward.enable": True}, Needs(groups=True))  # fmt: skip
    assert config.process_reward.enable is False
    (said,) = [notice for notice in notices if "process_reward" in notice]
    assert said == (
        "unused: process_reward.enable, process_reward.mini_batch_size "
        "(algorithm.adv_estimator=grpo has no process reward model)"
    )


def test_micro_batch_size_with_a_token_budget_has_no_effect(finish):
    keys = {"process_reward.use_dynamic_bsz": True, "process_reward.micro_batch_size_per_gpu": 2}
    _, notices = finish(KEYS | keys, PRIME)
    assert any(notice.startswith("no effect: process_reward.micro_batch_size_per_gpu") for notice in notices)


def test_memory_counts_the_model_and_its_start(finish):
    without = estimate_memory(finish(KEYS, Needs(groups=True))[0], FACTS, 2)
    float32 = estimate_memory(finish(KEYS, PRIME)[0], FACTS, 2)
    assert without.process_reward == 0
    assert float32.process_reward == 16_000_000  # start 4, weights 4, moments 8; a float32 weight is its own master
    assert float32.always == without.always + float32.process_reward
    assert float32.gradients == without.gradients  # its gradients are there when the actor's are not
    low = estimate_memory(finish(KEYS | {"process_reward.model.dtype": "bf16"}, PRIME)[0], FACTS, 2)
    assert low.process_reward == 16_000_000  # 2 + 2, masters 4, moments 8
    assert low.gradients == 6_000_000  # the larger of 4 for the actor and 4 + 2 here


def test_the_plan_has_its_steps_and_its_memory(finish):
    lines = plan_numbers(finish(KEYS | {"process_reward.mini_batch_size": 8}, PRIME)[0], 100, FACTS)
    assert value(lines, "process reward optimiser steps per step") == "2"
    assert value(lines, "memory: process reward model") == "15.3 MiB"
    without = plan_numbers(finish(KEYS, Needs(groups=True))[0], 100, FACTS)
    assert not [line for line in without if "process reward" in line.name]


def test_its_micro_batches_are_planned(finish):
    name = "process_reward.micro_batch_size_per_gpu"
    keys = KEYS | {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 3}
    config, _ = finish(keys, PRIME)
    notice = plan_micro_batches(config, FACTS, 10**15)[-1]
    assert config.process_reward.micro_batch_size_per_gpu == 16 and name in notice
    config, _ = finish(keys | {name: 5}, PRIME)
    notice = plan_micro_batches(config, FACTS, 10**15)[-1]
    assert config.process_reward.micro_batch_size_per_gpu == 5 and name not in notice
    config, _ = finish(keys | {"process_reward.use_dynamic_bsz": True}, PRIME)
    notice = plan_micro_batches(config, FACTS, 10**15)[-1]
    assert config.process_reward.micro_batch_size_per_gpu is None and name not in notice
    config, _ = finish(keys, Needs(groups=True))
    assert name not in plan_micro_batches(config, FACTS, 10**15)[-1]
