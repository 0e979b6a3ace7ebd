"""The reward model's keys: what follows the actor, what is refused, memory and micro-batches."""

import pytest

from burnish.config import Needs, check_model, estimate_memory, plan_micro_batches, plan_numbers
from burnish.errors import ConfigError
from burnish.models.facts import ModelFacts

ACTOR = "actor_rollout_ref.actor"
ON = {"reward_model.enable": True, "reward_model.model.path": "some/rm"}
KEY, MICRO = "reward_model.model", "reward_model.micro_batch_size_per_gpu"
BATCH = {"data.train_batch_size": 16, f"{ACTOR}.ppo_mini_batch_size": 4}


def facts(parameters=1_000_000, context=None, **sizes):
    known = {"layers": 4, "hidden": 128, "intermediate": 512, "vocab": 1000}
    return ModelFacts("qwen2", context, heads=4, kv_heads=2, head_dim=32, parameters=parameters, **known | sizes)


POLICY = {"actor_rollout_ref.model": facts()}


def test_it_is_a_model_of_the_run_where_it_is_enabled(finish):
    assert list(finish(ON)[0].models) == ["actor_rollout_ref.model", KEY]
    config, notices = finish({"reward_model.model.path": "some/rm", MICRO: 4})
    assert list(config.models) == ["actor_rollout_ref.model"]
    (said,) = [notice for notice in notices if "reward_model" in notice]
    assert said.startswith("unused: ") and "reward_model.model.path" in said and MICRO in said


def test_what_is_left_open_follows_the_actor(finish):
    keys = {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 4096}
    section = finish(ON | keys)[0].reward_model
    assert (section.use_dynamic_bsz, section.forward_max_token_len_per_gpu) == (True, 4096)


def test_it_needs_a_path(finish):
    with pytest.raises(ConfigError, match=r"reward_model\.enable=true needs reward_model\.model\.path"):
        finish({"reward_model.enable": True})


@pytest.mark.parametrize("name", ["rule_weight", "model_weight"])
@pytest.mark.parametrize("weight", ["inf", "-inf", "nan"])
def test_weights_are_finite(finish, name, weight):
    with pytest.raises(ConfigError, match=rf"reward_model\.{name}=.*(finite|number)"):
        finish(ON | {f"reward_model.{name}": float(weight)})
    assert getattr(finish(ON | {f"reward_model.{name}": -0.5})[0].reward_model, name) == -0.5


def test_keys_that_are_not_read_are_reported(finish):
    tokens, checkpointing = "reward_model.forward_max_token_len_per_gpu", f"{KEY}.enable_gradient_checkpointing"
    told = "\n".join(finish(ON | {tokens: 512, checkpointing: True})[1])
    assert f"unused: {tokens} (reward_model.use_dynamic_bsz is false" in told
    assert f"unused: {checkpointing} (the reward model is not trained)" in told
    read = finish(ON | {tokens: 512, "reward_model.use_dynamic_bsz": True})[1]
    assert "unused" not in "\n".join(read) and "unused" not in "\n".join(finish(ON)[1])


def test_only_its_weights_count(finish):
    without = estimate_memory(finish(BATCH)[0], POLICY, 2)
    memory = estimate_memory(finish(BATCH | ON)[0], POLICY | {KEY: facts(5_000_000, vocab=99_000)}, 2)
    assert without.reward_model == 0 and memory.reward_model == 5_000_000 * 4
    assert memory.always == without.always + memory.reward_model
    for name in ("gradients", "logits", "activations", "kv_cache"):
        assert getattr(memory, name) == getattr(without, name), f"{name}: no optimiser, no logits, no generation"
    half = estimate_memory(finish(BATCH | ON | {f"{KEY}.dtype": "bf16"})[0], POLICY | {KEY: facts(5_000_000)}, 2)
    assert half.reward_model == 5_000_000 * 2
    wide = estimate_memory(finish(BATCH | ON)[0], POLICY | {KEY: facts(hidden=64 * 128)}, 2)
    assert wide.activations > without.activations, "a pass of a much larger model"


def test_the_plan_shows_it(finish):
    lines = plan_numbers(finish(BATCH | ON)[0], 100, POLICY | {KEY: facts(2**20)})
    (line,) = [line for line in lines if line.name == "memory: reward model"]
    assert line.value == "4.0 MiB" and "not trained" in line.how
    assert not [line for line in plan_numbers(finish(BATCH)[0], 100, POLICY) if "reward model" in line.name]


def test_its_micro_batches_are_planned(finish):
    keys = BATCH | ON | {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 3}
    config, _ = finish(keys)
    notice = plan_micro_batches(config, POLICY, 10**15)[-1]
    assert config.reward_model.micro_batch_size_per_gpu == 4 and MICRO in notice
    config, _ = finish(keys | {MICRO: 5})
    notice = plan_micro_batches(config, POLICY, 10**15)[-1]
    assert config.reward_model.micro_batch_size_per_gpu == 5 and MICRO not in notice
    config, _ = finish(keys | {"reward_model.use_dynamic_bsz": True})
    notice = plan_micro_batches(config, POLICY, 10**15)[-1]
    assert config.reward_model.micro_batch_size_per_gpu is None and MICRO not in notice
    config, _ = finish({name: value for name, value in keys.items() if name not in ON})
    assert MICRO not in plan_micro_batches(config, POLICY, 10**15)[-1]


def test_short_context_is_reported_and_not_refused(finish):
    config, _ = finish(ON)  # 512 + 512 tokens
    assert check_model(config, KEY, facts(context=1024)) == check_model(config, KEY, facts(context=None)) == []
    (notice,) = check_model(config, KEY, facts(context=1000))
    assert notice == (
        "the reward model reads 1000 tokens (the context of reward_model.model.path=some/rm), of up to 1024: what is "
        "longer loses its start"
    )
    config, _ = finish(ON | {"reward_model.max_length": 800})
    (notice,) = check_model(config, KEY, facts(context=None))
    assert "800 tokens (reward_model.max_length)" in notice
    with pytest.raises(ConfigError, match=r"reward_model\.max_length=800: .*some/rm has a context of 700; lower it"):
        check_model(config, KEY, facts(context=700))


def test_critic_counts_too(finish):
    config, _ = finish(BATCH | ON | {"algorithm.adv_estimator": "gae"}, Needs(critic=True))
    assert list(config.models) == ["actor_rollout_ref.model", "critic.model", KEY]
    memory = estimate_memory(config, POLICY, 2)
    assert (memory.critic, memory.reward_model) == (12_000_000, 4_000_000)
