"""Types, choices and ranges: what is taken, and what the complaint says."""

import pytest

from burnish.config import PPOConfig
from burnish.config.key import keys_of
from burnish.config.values import convert
from burnish.errors import ConfigError

KEYS = keys_of(PPOConfig)
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("trainer.total_epochs", 3, 3),
        ("trainer.total_epochs", "3", 3),
        ("trainer.total_epochs", 1e2, 100),
        ("actor_rollout_ref.actor.optim.lr", 1, 1.0),
        ("actor_rollout_ref.actor.optim.lr", "1e-6", 1e-6),
        ("data.shuffle", "False", False),
        ("data.shuffle", 1, True),
        ("trainer.experiment_name", 7, "7"),
        ("data.train_files", "a.parquet", ["a.parquet"]),
        ("data.train_files", ["a.parquet", "b.json"], ["a.parquet", "b.json"]),
        ("trainer.logger", "tensorboard", ["tensorboard"]),
        (f"{ROLLOUT}.stop", None, []),
        ("actor_rollout_ref.model.override_config", None, {}),
        ("data.val_batch_size", None, None),
        (f"{ROLLOUT}.n", None, None),
        ("actor_rollout_ref.model.dtype", "bf16", "bfloat16"),
        ("trainer.n_gpus_per_node", 1, 1),
        ("trainer.n_gpus_per_node", "auto", "auto"),
        ("actor_rollout_ref.model.use_fused_kernels", "auto", "auto"),
        ("actor_rollout_ref.model.use_fused_kernels", False, False),
        ("algorithm.adv_estimator", "my.package:estimate", "my.package:estimate"),
        ("reward_model.reward_manager", "managers/mine.py:Manager", "managers/mine.py:Manager"),
    ],
)
def test_convert_accepts_valid_values(name, raw, value):
    converted = convert(KEYS[name], raw)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("trainer.total_epochs", "three", "trainer.total_epochs=three: must be an integer of at least 1"),
        ("trainer.total_epochs", 2.5, "trainer.total_epochs=2.5: must be an integer"),
        ("trainer.total_epochs", True, "trainer.total_epochs=true: must be an integer"),
        (
            "trainer.total_epochs",
            None,
            "trainer.total_epochs=null: must be an integer of at least 1; leave it out for 1",
        ),
        ("data.shuffle", "maybe", "data.shuffle=maybe: must be true or false"),
        ("data.prompt_key", {"a": 1}, "data.prompt_key={a:1}: must be a string"),
        ("data.dataset_weights", ["a"], "data.dataset_weights=[a]: must be a number or a list of them"),
        ("data.truncation", "cut", "data.truncation=cut: must be one of error, left, right, middle"),
        ("trainer.n_gpus_per_node", "all", "trainer.n_gpus_per_node=all: must be one of auto, an integer"),
        ("reward_model.reward_manager", "naiv", "must be one of naive"),
        ("reward_model.reward_manager", "naiv", "your own as package.module:name"),
        ("data.max_prompt_length", 0, "data.max_prompt_length=0: must be an integer of at least 1"),
        (f"{ROLLOUT}.top_p", 1.5, "top_p=1.5: must be a number of more than 0 and at most 1"),
        (f"{ROLLOUT}.top_p", 0, "top_p=0.0: must be a number of more than 0"),
        ("algorithm.gamma", float("nan"), "algorithm.gamma=nan: must be a number of at least 0"),
        ("algorithm.kl_penalty", "full", "it needs the whole vocabulary for every token; use low_var_kl"),
        ("actor_rollout_ref.actor.kl_loss_type", "full", "use low_var_kl"),
        ("algorithm.kl_penalty", "k3+", "algorithm.kl_penalty=k3+: must be one of kl, k1"),
    ],
)
def test_convert_refuses_invalid_values(name, raw, message):
    with pytest.raises(ConfigError) as error:
        convert(KEYS[name], raw)
    assert message in str(error.value)


def test_the_loss_knows_kl_estimates_with_a_plus():
    assert convert(KEYS["actor_rollout_ref.actor.kl_loss_type"], "low_var_kl+") == "low_var_kl+"
