"""The local executor: one worker in this process."""

import pytest
import torch

from burnish.controller.group import ClassWithInitArgs
from burnish.controller.local import LocalWorkerGroup
from burnish.controller.pool import ResourcePool
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
