"""Users' reward managers that import from verl, in runs of burnish, next to its naive manager."""

import importlib

import pytest
import torch
from verl.experimental.reward_loop.reward_manager import RewardManagerBase
from verl.workers import reward_manager
from verl.workers.reward_manager.abstract import on_policy_tokens

from burnish.errors import ConfigError, RewardError
from burnish.protocol import DataProto
from tests.compat.training import trained

MANAGERS = "tests.compat.user_files.managers"


@pytest.fixture(scope="module", autouse=True)
def _registered():
    importlib.import_module(MANAGERS)


@pytest.fixture(scope="module")
def naive(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("naive"))


def without(metrics, *names):
    return {name: value for name, value in metrics.items() if not name.startswith(names)}


@pytest.mark.parametrize(
    "name", ["own_loop", "verified", "verified_in_parallel", "own_dapo", "own_naive_loop", f"{MANAGERS}:OneByOne"]
)
def test_a_users_manager_gives_the_metrics_of_the_built_in_one(tmp_path, naive, name):
    found = trained(tmp_path, f"reward_model.reward_manager={name}")
    assert naive[0]["critic/score/max"] > 0
    for got, want in zip(found, naive, strict=True):
        own = (
            "failures/",
            "reward/letters",
            "reward/length",
        )  # where a manager scores by itself, a failure ends the run
        assert without(got, *own) == pytest.approx(without(want, *own), rel=1e-6)


def test_a_subclass_changes_the_scores_of_the_built_in_manager(tmp_path, naive):
    found = trained(tmp_path, "reward_model.reward_manager=doubled")
    assert found[0]["critic/score/mean"] == pytest.approx(2 * naive[0]["critic/score/mean"])


def test_rewards_on_observations_go_to_the_policys_last_token():
    data = DataProto.from_dict({"response_mask": torch.tensor([[1, 0, 0], [1, 1, 1], [0, 0, 0]])})
    moved = on_policy_tokens(torch.tensor([[0.0, 0, 2], [0, 0, 1], [0, 0, 1]]), data)
    assert moved.tolist() == [[2, 0, 0], [0, 0, 1], [0, 0, 0]]


def test_managers_are_found_by_name():
    assert reward_manager.get_reward_manager_cls("own_loop").__name__ == "OwnLoop"
    with pytest.raises(ValueError, match="no such manager"):
        reward_manager.get_reward_manager_cls("nothing")
    with pytest.raises(ConfigError, match="already registered"):
        reward_manager.register("own_loop")(type("Other", (), {}))


def test_the_overlong_penalty_is_not_given_twice():
    buffer = type("Buffer", (), {"enable": True})
    with pytest.raises(ConfigError, match=r"algorithm\.overlong_buffer\.enable"):
        reward_manager.DAPORewardManager(None, 0, lambda solution_str: 0.0, overlong_buffer_cfg=buffer)


def test_run_single_has_to_return_its_score():
    class NoScore(RewardManagerBase):
        async def run_single(self, data):
            return {"score": 1.0}

    manager = NoScore.burnish_class()(None, 0, lambda solution_str: 0.0)
    with pytest.raises(RewardError, match=r"NoScore\.run_single returned .*reward_score"):
        manager.verify(DataProto.from_dict({"response_mask": torch.ones(1, 2)}))
