"""RayWorkerGroup: the workers of one role on a cluster, and RayPeer: one of them, as workers of other processes and the
controller call it directly. `connect` gives the group class of a cluster."""

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import ray
from ray.cloudpickle import CloudPickler
from ray.exceptions import RayActorError, RayError

from burnish import waits
from burnish.config.trainer import RayInitConfig
from burnish.controller.dispatch import WorkerCall
from burnish.controller.group import ClassWithInitArgs, WorkerGroup
from burnish.controller.host import WorkerReply
from burnish.controller.pool import ResourcePool
from burnish.controller.process import Address, Surroundings
from burnish.controller.ray.cluster import DUMP, Cluster, last_lines, start_ray
from burnish.controller.ray.future import RayFuture
from burnish.controller.ray.hosts import Hosts, Process
from burnish.controller.wire import flat, pack
from burnish.controller.worker import Worker
from burnish.controller.worker_status import WorkerStatus, quoted, reason
from burnish.errors import BurnishError, WorkerDied, WorkerError, WorkersLate
from burnish.waits import waiting

logger = logging.getLogger(__name__)


class RayPeer:
    def __init__(self, role: str, process: Process, where: str, each_s: float, rounds: int):
        self.rank, self.name = process.place.rank, f"{role}, {where}"
        self._role, self._actor, self._address = role, process.actor, process.address
        self._seconds = each_s * rounds
        self._limit = f"{self._seconds:g} s ({f'{rounds} × ' if rounds > 1 else ''}trainer.worker_timeout)"

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        skeleton, tensors = pack((args, kwargs), CloudPickler)
        ref = self._actor.direct.remote(self._role, method, skeleton, [flat(tensor) for tensor in tensors])
        try:
            with waiting("worker", "", f"{method} of {self.name}", self._seconds) as wait:
                try:
                    reply: WorkerReply = await asyncio.wait_for(ref, self._seconds)
                except TimeoutError:
                    wait.overdue()
                    raise
        except TimeoutError as error:
            ray.cancel(ref)
            late = f"{method} of {self.name} has not finished within {self._limit}"
            raise WorkersLate(f"{late}; {await self._status()}") from error
        except asyncio.CancelledError:
            ray.cancel(ref)
            raise
        except RayActorError as error:
            died = f"{self.name}, died while it ran {method}: {reason(str(error))}"
            raise WorkerDied(died + await asyncio.to_thread(_last_lines, self._address)) from error
        except RayError as error:
            raise WorkerError(f"{method} failed on {self.name}: {reason(str(error))}") from error
        return reply.value(f"{method} of {self.name}")

    async def _status(self) -> str:
        try:
            there: WorkerStatus = await asyncio.wait_for(self._actor.status.remote(), DUMP)
        except (TimeoutError, RayError):
            return "it does not answer: stopped, or stuck"
        return f"it {there}{quoted('where', there.stack)}"


@lru_cache(maxsize=64)  # of a process that has died, many calls report the same
def _last_lines(address: Address) -> str:
    return last_lines(address)


class RayWorkerGroup(WorkerGroup):
    cluster: ClassVar[Cluster]

    def __init__(self, role: str, worker_class: type[Worker], hosts: Hosts):
        self._role, self._hosts = role, hosts
        super().__init__(worker_class, len(hosts.processes))

    @classmethod
    def spawn(cls, pool: ResourcePool, workers: Mapping[str, ClassWithInitArgs]) -> dict[str, Self]:
        hosts = Hosts.start(cls.cluster, pool)
        try:
            return cls.on(hosts, workers)
        except BurnishError as error:
            hosts.end(f"their workers could not be made: {error}")
            raise

    @classmethod
    def on(cls, hosts: Hosts, workers: Mapping[str, ClassWithInitArgs]) -> dict[str, Self]:
        """Make the groups on processes that run already."""
        groups = {role: cls(role, made.cls, hosts) for role, made in workers.items()}
        hosts.roles.extend(role for role in workers if role not in hosts.roles)
        if hosts not in cls.cluster.pools:
            cls.cluster.pools.append(hosts)
        for role, made in workers.items():
            arguments = [(role, made, process.place) for process in hosts.processes]
            hosts.give(f"{made.cls.__name__}.__init__", "make", arguments).get()
        return groups

    @classmethod
    def available_devices(cls, device: str = "auto") -> list[int] | None:
        return cls.cluster.gpus(device)

    @classmethod
    def disconnect(cls) -> None:
        """End all processes of this run; and Ray, where `connect` started it."""
        cluster = cls.cluster
        for hosts in cluster.pools:
            hosts.end("the run disconnected from Ray")
        if ray.is_initialized() and cluster.connected:
            if cluster.timeline:
                path = Path(cluster.timeline).expanduser()
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    ray.timeline(str(path))
                except (OSError, RayError) as error:  # the run is done; a file about it is no reason to fail
                    logger.warning("ray_init.timeline_json_file=%s could not be written: %s", path, error)
            if cluster.ours:
                ray.shutdown()
        cluster.connected = False
        if cluster.report in waits.worker_reports:
            waits.worker_reports.remove(cluster.report)
        if cluster.logs_are_ours:
            shutil.rmtree(cluster.surroundings.logs, ignore_errors=True)

    def submit(self, method: str, calls: list[WorkerCall], answering: int | None = None) -> RayFuture:
        same: dict[Any, tuple[Any, ...]] = {}  # calls of the same objects are sent as one
        arguments = []
        for call in calls:
            key = (id(call.args), tuple((name, id(value)) for name, value in call.kwargs.items()))
            arguments.append(same.setdefault(key, (self._role, method, call.args, call.kwargs)))
        return self._hosts.give(f"{self.worker_class.__name__}.{method}", "call", arguments, answering)

    def peers(self, rounds: int = 1) -> list[RayPeer]:
        hosts, each_s = self._hosts, self.cluster.deadline_s
        return [RayPeer(self._role, process, hosts.named(process), each_s, rounds) for process in hosts.processes]

    def shutdown(self) -> None:
        self._hosts.end("the run shut them down")


def connect(
    ray_init: RayInitConfig,
    *,
    processes: int,  # that will be started, of all pools
    logs: Path | None,  # folder for a log file of each; None: kept only until `disconnect`
    deadline_s: float,  # the longest wait for one call
    start_deadline_s: float,  # the longest wait for processes to be placed and started
    run: Path | None = None,  # the run folder, where every process reports what it waits for
    libraries: Mapping[str, Any] | None = None,  # keys and values of `….external_lib`, which every process imports
    under: Callable[[str], list[str]] | None = None,  # by a worker's name: the command its Python is started with
) -> type[RayWorkerGroup]:
    """Start a Ray on this machine, or join the one at `ray_init.address` (or the one this process already uses)."""
    ours = not ray.is_initialized()
    address = ray_init.address or os.environ.get("RAY_ADDRESS") or "local"
    if ours:
        start_ray(address, ray_init.num_cpus or max(processes, 2))
    folder = logs or Path(tempfile.mkdtemp(prefix="burnish-logs-"))
    surroundings = Surroundings(
        str(folder.absolute()), str(run.absolute()) if run else None, libraries=dict(libraries or {})
    )
    cluster = Cluster(
        surroundings,
        deadline_s,
        start_deadline_s,
        ours,
        shared=not ours or address != "local",
        logs_are_ours=logs is None,
        timeline=ray_init.timeline_json_file,
        under=under,
    )
    waits.worker_reports.append(cluster.report)
    return type("RayWorkerGroup", (RayWorkerGroup,), {"cluster": cluster})
