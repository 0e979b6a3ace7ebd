"""What a library of `….external_lib` registers is found by name: by the rules of keys, and by the workers."""

import pytest

from burnish.agents import base
from burnish.algorithms import advantages, losses
from burnish.config.load import libraries, load_ppo
from burnish.errors import ConfigError
from burnish.rewards import managers
from tests.trainer.conftest import GRPO

LIBRARY = """
from burnish.agents import register
from burnish.agents.loops.single_turn import SingleTurnAgentLoop
from burnish.algorithms.advantages import Needs, register_adv_est
from burnish.algorithms.advantages.grpo import grpo
from burnish.algorithms.losses import register_policy_loss
from burnish.algorithms.losses.vanilla import vanilla
from burnish.rewards.managers import register as register_manager
from burnish.rewards.managers.naive import NaiveRewardManager


@register_adv_est("own_grpo", needs=Needs(groups=True))
def own_grpo(inputs):
    return grpo(inputs)


@register_policy_loss("own_vanilla", needs=Needs(ratio=True, skips_zero_advantage=True))
def own_vanilla(inputs):
    return vanilla(inputs)


@register("my_custom_agent_loop")
class OwnLoop(SingleTurnAgentLoop):
    pass


@register_manager("own_naive")
class OwnManager(NaiveRewardManager):
    pass
"""
MODE, LOOP = "actor_rollout_ref.actor.policy_loss.loss_mode", "actor_rollout_ref.rollout.agent_loop"
MANAGER = "reward_model.reward_manager"
OWN = ["algorithm.adv_estimator=own_grpo", "actor_rollout_ref.rollout.n=3", f"{MODE}=own_vanilla",
       f"{LOOP}=my_custom_agent_loop", f"{MANAGER}=own_naive"]  # fmt: skip


@pytest.fixture(autouse=True)
def _own_tables(monkeypatch):
    monkeypatch.setattr(base, "_registered", dict(base._registered))
    monkeypatch.setattr(managers, "MANAGERS", dict(managers.MANAGERS))
    for table in (advantages.TABLE, losses.TABLE):
        monkeypatch.setattr(table, "entries", dict(table.entries))


def test_what_a_library_registers_trains_as_the_built_in_ones(train, metrics_of, tmp_path):
    (tmp_path / "own_library.py").write_text(LIBRARY)
    steps = ["data.val_files=null", "trainer.total_training_steps=2"]
    train(*GRPO, *steps, "trainer.default_local_dir=built_in")
    train(*OWN, *steps, "actor_rollout_ref.model.external_lib=own_library.py")
    assert metrics_of("run") == metrics_of("built_in")


def test_a_library_may_be_named_by_verls_variable(tmp_path, monkeypatch):
    (tmp_path / "own_library.py").write_text(LIBRARY)
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", f"{tmp_path}/own_library.py")
    loaded = load_ppo(["actor_rollout_ref.model.path=a", "data.train_files=b", "algorithm.adv_estimator=own_grpo"])
    assert "own_grpo" in advantages.TABLE.entries
    assert libraries(loaded.config) == {"VERL_USE_EXTERNAL_MODULES": f"{tmp_path}/own_library.py"}


@pytest.mark.parametrize(
    ("key", "there"),
    [
        ("algorithm.adv_estimator", "grpo, "),
        (MODE, "gspo, "),
        (LOOP, "single_turn_agent, "),
        (MANAGER, "naive, "),
    ],
)
def test_a_name_that_nobody_registered_is_refused(train, key, there):
    with pytest.raises(ConfigError, match=f"=not_registered: .*{there}"):
        train(*GRPO, f"{key}=not_registered")
