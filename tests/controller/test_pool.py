"""Roles, pools and the checks of what is asked for against what is there."""

import pytest

from burnish.controller.pool import ResourcePool, ResourcePoolManager, Role
from burnish.controller.worker import WorkerPlace
from burnish.errors import ConfigError


def test_places_count_ranks_over_nodes():
    pool = ResourcePool([2, 1], "p", device="cpu")
    assert pool.world_size == 3
    assert pool.places() == [
        WorkerPlace(0, 3, 0, 2, "cpu"),
        WorkerPlace(1, 3, 1, 2, "cpu"),
        WorkerPlace(2, 3, 0, 1, "cpu"),
    ]


@pytest.mark.parametrize("wrong", [[], [0], [2, -1], [1.5], ["2"]])
def test_a_pool_needs_positive_counts(wrong):
    with pytest.raises(ConfigError, match=r"pool 'p' must be a list of positive numbers of devices"):
        ResourcePool(wrong, "p")


@pytest.fixture
def manager():
    return ResourcePoolManager(
        {"train": [4, 4], "judge": [2]},
        {Role.ActorRolloutRef: "train", Role.Critic: "train", Role.RewardModel: "judge", "tool_model": "judge"},
        device="cpu",
    )


def test_roles_share_pools(manager):
    assert manager.get_resource_pool(Role.Critic) is manager.get_resource_pool(Role.ActorRolloutRef)
    assert manager.get_resource_pool("tool_model").process_on_nodes == [2]
    assert manager.get_resource_pool(Role.RewardModel).device == "cpu"
    assert manager.roles_of("train") == [Role.ActorRolloutRef, Role.Critic]
    assert manager.n_processes() == 10


def test_mistakes_in_the_mapping(manager):
    with pytest.raises(ConfigError, match=r"role 'ref' has no pool; mapped are: actor_rollout_ref, critic"):
        manager.get_resource_pool(Role.RefPolicy)
    with pytest.raises(ConfigError, match=r"role 'critic' is mapped to pool 'b', which does not exist; there are: a"):
        ResourcePoolManager({"a": [1]}, {Role.Critic: "b"})
    with pytest.raises(ConfigError, match=r"no role runs on b; map one to it or remove it"):
        ResourcePoolManager({"a": [1], "b": [1]}, {Role.Critic: "a"})


def test_more_devices_than_there_are(manager):
    manager.check_devices(None)
    manager.check_devices([8, 8])
    manager.check_devices([5, 5])
    with pytest.raises(
        ConfigError, match=r"10 devices asked for \(train \[4, 4\] \+ judge \[2\]\), but there are 8"
    ) as e:
        manager.check_devices([4, 4])
    assert "lower trainer.n_gpus_per_node" in str(e.value)
    with pytest.raises(ConfigError, match=r"pool 'train' needs 4 devices on one node, but no node has more than 2"):
        manager.check_devices([2] * 5)
    pools = {"train": [2], "agents": [8]}
    manager = ResourcePoolManager(pools, {Role.ActorRolloutRef: "train", Role.AgentLoop: "agents"})
    manager.check_devices([2])  # agent loops alone need none
    assert [pool.name for pool in manager.model_pools()] == ["train"]
