"""Workers and groups made as in verl, on burnish's controller."""

import pytest
import torch
from verl import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import (
    Dispatch,
    Execute,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)

from burnish.controller.local import LocalWorkerGroup
from burnish.errors import ConfigError, NotAvailable

ray = pytest.importorskip("ray")


def every_second(group, values):
    return ([values[rank :: group.world_size] for rank in range(group.world_size)],), {}


def flattened(group, outputs):
    return sorted(value for output in outputs for value in output)


class Accumulator(Worker):
    def __init__(self, start):
        super().__init__()
        self._register_dispatch_collect_info("actor", dp_rank=self.rank, is_collect=True)
        self.value = start + self.rank

    def add(self, x):  # not registered
        self.value += x
        return self.value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def all_of_them(self):
        return self.value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def first(self):
        return self.value

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def shifted(self, data):
        return DataProto.from_dict({"x": data.batch["x"] + self.rank})

    @register(dispatch_mode={"dispatch_fn": every_second, "collect_fn": flattened})
    def own_way(self, values):
        return [10 * value for value in values]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def later(self):
        return self.value


@pytest.fixture(scope="module")
def group():
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

    pool = RayResourcePool([2], use_gpu=False, max_colocate_count=1)
    made = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(ray.remote(Accumulator), start=5))
    yield made
    type(made._group).disconnect()


@pytest.mark.ray
@pytest.mark.slow
def test_registered_methods_and_others_are_called_on_all_workers(group):
    assert group.world_size == 2
    assert group.all_of_them() == [5, 6] and group.first() == 5
    assert group.shifted(DataProto.from_dict({"x": torch.zeros(5)})).batch["x"].tolist() == [0, 0, 0, 1, 1]
    assert group.own_way([3, 1, 2]) == [10, 20, 30]
    assert group.later().get() == [5, 6]
    assert group.execute_all_sync("add", x=[1, 2]) == [6, 8]
    assert group.execute_all_sync("add", 1) == [7, 9]
    assert group.execute_rank_zero_sync("add", x=1) == 8
    with pytest.raises(AttributeError, match="'nothing' is not a registered method of Accumulator"):
        group.nothing()


@pytest.mark.ray
@pytest.mark.slow
def test_roles_share_the_processes_of_a_pool(group):
    from verl.single_controller.ray import (
        RayClassWithInitArgs,
        RayResourcePool,
        RayWorkerGroup,
        create_colocated_worker_cls,
    )

    roles = {"actor": RayClassWithInitArgs(Accumulator, start=1), "critic": RayClassWithInitArgs(Accumulator, 2)}
    together = RayWorkerGroup(RayResourcePool([1], use_gpu=False), create_colocated_worker_cls(roles))
    groups = together.spawn(prefix_set=roles.keys())
    assert [groups[role].all_of_them() for role in roles] == [[1], [2]]
    with pytest.raises(ConfigError, match="has the roles actor, critic; spawn them"):
        together.all_of_them()
    groups["actor"].shutdown()


def test_workers_run_in_this_process_too():
    assert LocalWorkerGroup(Accumulator(3)).own_way([2, 1]) == [10, 20]


def test_a_mesh_that_does_not_split_over_all_workers_is_refused():
    with pytest.raises(NotAvailable, match=r"mesh 'actor' with dp_rank=1"):
        Worker()._register_dispatch_collect_info("actor", dp_rank=1, is_collect=True)
