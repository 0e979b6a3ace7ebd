"""Worker classes and group factories for the controller's tests.

`make_group(cls, *args, world_size=…)` is the fixture all group tests use; it runs them in this process and in others.
Of both executors with processes, four processes are started once, which all tests use anew (`groups` is for tests that
need processes of their own). They receive worker classes by value: they do not import test files.
"""

import asyncio
import importlib
import itertools
import sys
from contextlib import suppress

import cloudpickle
import pytest
import torch

from burnish.controller.dispatch import CallSplit, Dispatch, DispatchPair, Execute, WorkerCall, register
from burnish.controller.group import ClassWithInitArgs, WorkerGroup
from burnish.controller.hosts import Hosts
from burnish.controller.local import Finished, LocalPeer
from burnish.controller.pool import ResourcePool
from burnish.controller.processes import start
from burnish.controller.worker import Worker, call_worker
from burnish.errors import DataError
from burnish.protocol import DataProto


class SeveralInProcess(WorkerGroup):
    """Several workers in this process, called one after another: shows that dispatch and collect need no processes."""

    def __init__(self, workers):
        self.workers = workers
        super().__init__(type(workers[0]), len(workers))

    @classmethod
    def spawn(cls, pool, workers):
        return {name: cls([made.make(place) for place in pool.places()]) for name, made in workers.items()}

    @classmethod
    def available_devices(cls, device="auto"):
        return None

    def submit(self, method, calls, answering=None):
        pairs = zip(self.workers, calls, strict=False)  # Execute.RANK_ZERO has fewer calls than workers
        return Finished(
            lambda: [call_worker(worker, method, call.args, call.kwargs) for worker, call in pairs][:answering]
        )

    def peers(self, rounds=1):
        return [LocalPeer(worker) for worker in self.workers]

    def shutdown(self):
        pass


PROCESSES = 4


def settings(factory):
    return {"logs": factory.mktemp("logs"), "deadline_s": 240, "start_deadline_s": 500}


@pytest.fixture(scope="session")
def groups_of_processes(tmp_path_factory):
    """The RemoteWorkerGroup of this machine's processes."""
    found = start(**settings(tmp_path_factory))
    yield found
    found.disconnect()


@pytest.fixture(scope="session")
def groups_of_ray(tmp_path_factory):
    """That of a Ray which runs as long as the tests."""
    pytest.importorskip("ray")
    from burnish.config.trainer import RayInitConfig
    from burnish.controller.ray import connect

    found = connect(RayInitConfig(), processes=PROCESSES, **settings(tmp_path_factory))
    yield found
    found.disconnect()


def on_running_hosts(groups):
    """A RemoteWorkerGroup whose `spawn` uses processes that run already; they are in no process group."""
    running = Hosts.start(groups.cluster, ResourcePool([PROCESSES], "running", "cpu"))

    class OnRunningHosts(groups):
        @classmethod
        def spawn(cls, pool, workers):
            for process, place in zip(running.processes, pool.places(), strict=False):
                process.place = place
            return cls.on(Hosts(pool.name, running.processes[: pool.world_size], cls.cluster), workers)

    return OnRunningHosts


@pytest.fixture(scope="session")
def running_processes(groups_of_processes):
    return on_running_hosts(groups_of_processes)


@pytest.fixture(scope="session")
def running_ray(groups_of_ray):
    return on_running_hosts(groups_of_ray)


EXECUTORS = ["processes", pytest.param("ray", marks=pytest.mark.ray)]


@pytest.fixture(scope="session", params=EXECUTORS)
def executor(request):
    return request.param


@pytest.fixture(scope="session")
def groups(request, executor):
    return request.getfixturevalue(f"groups_of_{executor}")


@pytest.fixture(scope="session")
def running(request, executor):
    return request.getfixturevalue(f"running_{executor}")


@pytest.fixture
def by_value(request):
    """Send classes and functions of the test's file and of this one by value."""
    picklers = [cloudpickle]
    with suppress(ImportError):
        picklers.append(importlib.import_module("ray.cloudpickle"))
    modules = {sys.modules[__name__], request.module}
    for pickler, module in itertools.product(picklers, modules):
        pickler.register_pickle_by_value(module)
    yield
    for pickler, module in itertools.product(picklers, modules):
        pickler.unregister_pickle_by_value(module)


@pytest.fixture(params=["in_process", *EXECUTORS])
def make_group(request, by_value):
    group_class = SeveralInProcess
    if request.param != "in_process":
        group_class = request.getfixturevalue(f"running_{request.param}")

    def make(cls, *args, world_size=2, **kwargs):
        pool = ResourcePool([world_size], device="cpu")
        return group_class.spawn(pool, {"it": ClassWithInitArgs(cls, *args, **kwargs)})["it"]

    return make


def reversed_entries(world_size, /, entries):
    return CallSplit([WorkerCall((entry,), {}) for entry in reversed(entries)])


def reversed_back(split, outputs):
    return outputs[::-1]


class Counter(Worker):
    """One method for each way to call it. Results carry the rank, so that tests see who did what."""

    def __init__(self, start=0, fail=None):
        self.rank_at_init = self.rank
        self.total = start
        if fail:
            raise fail

    @register()
    def whoami(self):
        return self.rank, self.world_size, self.rank_at_init

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def zero(self, value):
        self.total += value
        return self.rank, self.total

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def everyone(self, value, name="", world_size=0, function=None):
        self.total += value
        return self.rank, self.total, name, world_size, function

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def first_only(self, value):
        self.total += value
        return self.rank, value

    @register(dispatch_mode=Dispatch.ALL_TO_ALL)
    def each(self, value, scale=1):
        return self.rank, value * scale

    @register(dispatch_mode=Dispatch.TOGETHER)
    def share(self, data, wrong=None):
        if self.rank == wrong:
            raise DataError(f"rank {self.rank} cannot")
        return self.rank, data.batch["x"][self.rank :: self.world_size].tolist()

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def tensors(self, tensor):
        return tensor.sum() + self.rank

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def double(self, data, factor=2, other=None):
        """One row out for one row in; the rank and what was seen ride along."""
        add = 0 if other is None else other.batch["x"]
        mask = data.batch["response_mask"]
        return DataProto.from_dict(
            {"y": data.batch["x"] * factor + add, "rank": torch.full((len(data),), self.rank), "seen_mask": mask},
            {"uid": data.non_tensor_batch["uid"]},
            {"metrics": {"rows": len(data), "trained": int(mask.sum())}},
        )

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def apply(self, function, data, *more):
        return function(data, self.rank, *more)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def measure(self, data, kind="dict"):
        metrics = {"trained": int(data.batch["response_mask"].sum()), "steps": [self.rank, self.rank]}
        return {"dict": metrics, "proto": DataProto(meta_info={"metrics": metrics}), "none": None, "odd": 3}[kind]

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    def engine_step(self):
        return "only the engine calls me"

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    async def wait(self, seconds, result):
        await asyncio.sleep(seconds)
        if isinstance(result, Exception):
            raise result
        return self.rank, result

    @register(dispatch_mode=DispatchPair(reversed_entries, reversed_back))
    def custom(self, value):
        return self.rank, value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def on_a_loop(self, value):
        await asyncio.sleep(0)
        before, self.loop = vars(self).get("loop"), asyncio.get_running_loop()
        if value is None:
            raise RuntimeError("nothing to await")
        return self.rank, value, before is self.loop

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def later(self, value):
        if value is None:
            raise RuntimeError("nothing to do")
        return self.rank, value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def breaks(self, how):
        raise DataError("row 3 of train.parquet has no prompt") if how == "typed" else KeyError("w_7")

    def private(self):
        return "not registered"


@pytest.fixture
def counter_class():
    return Counter


@pytest.fixture
def rows():
    """rows(5): a batch of five rows x = 0…4 with a uid and three tokens each."""

    def make(count):
        mask = torch.ones(count, 3, dtype=torch.int64)
        return DataProto.from_dict({"x": torch.arange(count), "response_mask": mask}, {"uid": list(range(count))})

    return make
