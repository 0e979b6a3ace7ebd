"""Scoring: limits that follow the manager, where programs run, and keys that only a reward model reads."""

import pytest

from burnish.config import EvalConfig
from burnish.config.finalise import finalise_eval
from burnish.config.reward import RewardConfig
from burnish.config.rules.scoring import limits
from burnish.errors import ConfigError

GRPO = {"algorithm.adv_estimator": "grpo"}
SERVER = "http://host:8080/run_code"


@pytest.mark.parametrize(("manager", "workers", "seconds"), [("naive", 2, 30), ("prime", 64, 300), ("dapo", 2, 30)])
def test_limits_follow_the_manager(finish, manager, workers, seconds):
    config, _ = finish(GRPO | {"reward_model.reward_manager": manager})
    assert (config.reward.num_workers, config.reward.timeout) == (workers, seconds)


def test_limits_that_are_set_stay(finish):
    config, _ = finish(GRPO | {"reward_manager.name": "prime", "reward.num_workers": 3, "reward.timeout": 7})
    assert (config.reward.num_workers, config.reward.timeout) == (3, 7)


def test_limits_of_a_bare_section():
    assert limits(RewardConfig(retries=4)).retries == 4
    assert (limits(RewardConfig()).num_workers, limits(RewardConfig()).timeout) == (2, 30)


@pytest.mark.parametrize(
    ("keys", "backend"),
    [
        ({}, "local"),
        ({"url": SERVER}, "sandbox_fusion"),
        ({"url": SERVER, "backend": "sandbox_fusion"}, "sandbox_fusion"),
    ],
)
def test_programs_run_on_the_server_that_is_named(finish, keys, backend):
    config, _ = finish(GRPO | {f"reward_model.sandbox.{name}": value for name, value in keys.items()})
    assert config.reward_model.sandbox.backend == backend


def test_isolation_is_the_servers_own(finish):
    keys = {"reward_model.sandbox.url": SERVER, "reward_model.sandbox.allow_unsafe": True}
    _, notices = finish(GRPO | keys)
    assert any("reward_model.sandbox.allow_unsafe" in notice and "server" in notice for notice in notices)


def test_evaluation_has_the_same_rules():
    config = EvalConfig()
    config.data.path, config.reward_model.sandbox.url = "out.parquet", SERVER
    finalise_eval(config, frozenset())
    assert (config.reward_model.sandbox.backend, config.reward.num_workers, config.reward.timeout) == (
        "sandbox_fusion", 2, 30,
    )  # fmt: skip
    config.reward_model.sandbox.url = None
    with pytest.raises(ConfigError, match="needs the address of the server"):
        finalise_eval(config, frozenset())


def test_reward_model_keys_are_reported_where_it_is_off(finish):
    keys = {"reward_model.model.path": "rm", "reward_model.rule_weight": 0.5, "reward_model.sandbox.timeout": 3}
    _, notices = finish(GRPO | keys)
    (said,) = [notice for notice in notices if "reward_model.enable is false" in notice]
    assert "reward_model.model.path" in said and "reward_model.rule_weight" in said and "sandbox" not in said


def test_a_reward_model_is_cut_as_the_actor_is(finish):
    keys = {
        "reward_model.enable": True,
        "reward_model.model.path": "rm",
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 2048,
        "reward_model.batch_size": 8,
    }
    config, notices = finish(GRPO | keys)
    assert config.reward_model.use_dynamic_bsz and config.reward_model.forward_max_token_len_per_gpu == 2048
    assert any("no effect: reward_model.micro_batch_size_per_gpu" in notice for notice in notices)
