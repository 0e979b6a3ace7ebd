"""The local executor, one worker in this process; roles, pools and the checks of what is asked for."""

import pytest
import torch

from burnish.controller.group import ClassWithInitArgs
from burnish.controller.local import LocalWorkerGroup
from burnish.controller.pool import ResourcePool, ResourcePoolManager, Role
from burnish.controller.worker import Worker, WorkerPlace, device_of
from burnish.errors import ConfigError, DataError, WorkerError
from burnish.models.device import pick_device


@pytest.fixture
def group(counter_class):
    return LocalWorkerGroup.spawn(ResourcePool([1], device="cpu"), {"it": ClassWithInitArgs(counter_class, 3)})["it"]


def test_spawn_makes_all_groups_of_a_pool(counter_class):
    workers = {"actor": ClassWithInitArgs(counter_class, 1), "critic": ClassWithInitArgs(counter_class, start=2)}
    groups = LocalWorkerGroup.spawn(ResourcePool([1]), workers)
    assert list(groups) == ["actor", "critic"]
    assert [group.zero(0) for group in groups.values()] == [(0, 1), (0, 2)]
    assert groups["critic"].worker.total == 2
    with pytest.raises(ConfigError, match=r"runs one process, but pool 'global' has 4; .*trainer.n_gpus_per_node=1"):
        LocalWorkerGroup.spawn(ResourcePool([2, 2], "global"), workers)


def test_calls_and_their_failures(group, rows):
    assert group.whoami() == [(0, 1, 0)]
    assert group.double(rows(5), factor=4).batch["y"].tolist() == [0, 4, 8, 12, 16]
    assert group.measure(rows(2)) == {"trained": [6], "steps": [0, 0]}
    assert group.custom(["a"]) == [(0, "a")]
    assert group.first_only(1) == (0, 1)
    assert group.later(1).get() == [(0, 1)]
    future = group.later(None)
    for _ in range(2):
        with pytest.raises(WorkerError, match=r"RuntimeError: nothing to do"):
            future.get()
    with pytest.raises(DataError, match=r"^row 3 of train.parquet has no prompt$"):
        group.breaks("typed")
    with pytest.raises(WorkerError, match=r"^Counter.breaks failed on rank 0 of 1: KeyError: 'w_7'$") as e:
        group.breaks("untyped")
    assert isinstance(e.value.__cause__, KeyError)
    assert group.on_a_loop(1) == [(0, 1, False)]
    group.shutdown()  # which leaves this process alone
    assert group.zero(1) == (0, 5)


def test_a_worker_that_adds_columns_does_not_change_the_callers_batch(group, rows):
    def add(data, rank):
        data.batch["new"] = data.batch["x"] + 1
        data.meta_info["note"] = "mine"
        return data

    data = rows(2)
    assert group.apply(add, data).batch["new"].tolist() == [1, 2]
    assert list(data.batch.keys()) == ["x", "response_mask"] and data.meta_info == {}


def test_a_worker_made_by_hand(counter_class, rows):
    worker = counter_class()
    assert (worker.rank, worker.world_size, worker.device.type) == (0, 1, pick_device("auto").type)
    assert worker.private() == "not registered"
    assert worker.double(rows(2)).batch["y"].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("seen", "gpu", "index"),
    [(1, None, 0), (1, 0, 0), (4, None, 2), (4, 3, 3)],
    ids=["one", "the one given", "local rank", "the one given of all"],
)
def test_the_device_of_a_worker(monkeypatch, seen, gpu, index):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    for kind in ("auto", "cuda"):
        place = WorkerPlace(6, 8, 2, 4, kind, gpu)
        assert device_of(place) == torch.device("cuda", index) == ClassWithInitArgs(Worker).make(place).device
        assert LocalWorkerGroup.available_devices(kind) == [seen]
    assert LocalWorkerGroup.available_devices("cpu") is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of(WorkerPlace(6, 8, 2, 4, "auto", gpu)) == torch.device("cpu")
    assert LocalWorkerGroup.available_devices("auto") is None
    with pytest.raises(ConfigError, match=r"trainer.device=cuda, but torch sees no GPU"):
        LocalWorkerGroup.available_devices("cuda")
    with pytest.raises(ConfigError, match=r"trainer.device=tpu is not a kind of device; choose auto, cuda or cpu"):
        pick_device("tpu")


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
    words = r"10 devices asked for \(train \[4, 4\] \+ judge \[2\]\), but there are 8"
    with pytest.raises(ConfigError, match=words) as e:
        manager.check_devices([4, 4])
    assert "lower trainer.n_gpus_per_node" in str(e.value)
    with pytest.raises(ConfigError, match=r"pool 'train' needs 4 devices on one node, but no node has more than 2"):
        manager.check_devices([2] * 5)
    pools = {"train": [2], "agents": [8]}
    manager = ResourcePoolManager(pools, {Role.ActorRolloutRef: "train", Role.AgentLoop: "agents"})
    manager.check_devices([2])  # agent loops alone need none
    assert [pool.name for pool in manager.model_pools()] == ["train"]
