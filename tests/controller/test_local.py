"""The local executor: one worker in this process."""

import pytest
import torch

from burnish.controller.group import ClassWithInitArgs
from burnish.controller.local import LocalWorkerGroup
from burnish.controller.pool import ResourcePool
from burnish.controller.worker import Worker
from burnish.errors import ConfigError, DataError, WorkerError
from burnish.models.device import pick_device
from burnish.protocol import DataProto


@pytest.fixture
def group(counter_class):
    return LocalWorkerGroup.spawn(ResourcePool([1], device="cpu"), {"it": ClassWithInitArgs(counter_class, 3)})["it"]


def test_spawn_makes_all_groups_of_a_pool(counter_class):
    workers = {
        "actor_rollout_ref": ClassWithInitArgs(counter_class, 1),
        "critic": ClassWithInitArgs(counter_class, start=2),
    }
    groups = LocalWorkerGroup.spawn(ResourcePool([1]), workers)
    assert list(groups) == ["actor_rollout_ref", "critic"]
    assert [group.zero(0) for group in groups.values()] == [(0, 1), (0, 2)]
    assert groups["critic"].worker.total == 2


def test_more_than_one_process_is_refused(counter_class):
    with pytest.raises(ConfigError, match=r"runs one process, but pool 'global' has 4; .*trainer.n_gpus_per_node=1"):
        LocalWorkerGroup.spawn(ResourcePool([2, 2], "global"), {"it": ClassWithInitArgs(counter_class)})


def test_calls(group, rows):
    assert group.whoami() == [(0, 1, 0)]
    assert group.double(rows(5, mask=True), factor=4).batch["y"].tolist() == [0, 4, 8, 12, 16]
    assert group.measure(rows(2)) == {"trained": [2], "steps": [0, 0]}
    assert group.custom(["a"]) == [(0, "a")]
    assert group.first_only(1) == (0, 1)


def test_a_worker_that_adds_columns_does_not_change_the_callers_batch(group, rows):
    def add(data, rank):
        data.batch["new"] = data.batch["x"] + 1
        data.meta_info["note"] = "mine"
        return data

    data = rows(2)
    assert group.apply(add, data).batch["new"].tolist() == [1, 2]
    assert list(data.batch.keys()) == ["x"]
    assert data.meta_info == {}


def test_errors(group):
    with pytest.raises(DataError, match=r"^row 3 of train.parquet has no prompt$"):
        group.breaks("typed")
    with pytest.raises(WorkerError, match=r"^Counter.breaks failed on rank 0 of 1: KeyError: 'w_7'$") as e:
        group.breaks("untyped")
    assert isinstance(e.value.__cause__, KeyError)


def test_non_blocking(group):
    assert group.later(1).get() == [(0, 1)]
    future = group.later(None)
    for _ in range(2):
        with pytest.raises(WorkerError, match=r"RuntimeError: nothing to do"):
            future.get()


def test_shutdown_leaves_this_process_alone(group):
    group.shutdown()
    assert group.zero(1) == (0, 4)


def test_a_worker_made_by_hand(counter_class):
    worker = counter_class()
    assert (worker.rank, worker.world_size, worker.device.type) == (0, 1, pick_device("auto").type)
    assert worker.private() == "not registered"
    assert worker.double(DataProto.from_dict({"x": torch.arange(2)})).batch["y"].tolist() == [0, 2]


def test_the_device_of_a_worker(monkeypatch):
    class Plain(Worker):
        pass

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    places = ResourcePool([2, 2]).places()
    assert ClassWithInitArgs(Plain).make(places[3]).device == torch.device("cuda", 1)
    assert LocalWorkerGroup.available_devices("auto") == [8]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # as a process that was given one GPU of its node
    assert ClassWithInitArgs(Plain).make(places[3]).device == torch.device("cuda", 0)
    assert LocalWorkerGroup.available_devices("cpu") is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ClassWithInitArgs(Plain).make(places[3]).device == torch.device("cpu")
    assert LocalWorkerGroup.available_devices("auto") is None
    with pytest.raises(ConfigError, match=r"trainer.device=cuda, but torch sees no GPU"):
        LocalWorkerGroup.available_devices("cuda")
    with pytest.raises(ConfigError, match=r"trainer.device=tpu is not a kind of device; choose auto, cuda or cpu"):
        pick_device("tpu")
