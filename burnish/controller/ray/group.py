"""RayWorkerGroup: the workers of one role on a cluster; `connect` gives the class of that cluster."""

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import ray
from ray.exceptions import RayError

from burnish import waits
from burnish.config.cluster import RayInitConfig
from burnish.controller.dispatch import WorkerCall
from burnish.controller.group import ClassWithInitArgs, WorkerGroup
from burnish.controller.pool import ResourcePool
from burnish.controller.process import Surroundings
from burnish.controller.ray.cluster import Cluster, start_ray
from burnish.controller.ray.future import RayFuture
from burnish.controller.ray.hosts import Hosts
from burnish.controller.ray.peer import Limit, RayPeer
from burnish.controller.worker import Worker
from burnish.errors import BurnishError

logger = logging.getLogger(__name__)


class RayWorkerGroup(WorkerGroup):
    """The workers of one role on the processes of a pool. `connect` gives the class of a cluster."""

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
                _write_timeline(Path(cluster.timeline).expanduser())
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
        hosts, limit = self._hosts, Limit(self.cluster.deadline_s, rounds)
        return [
            RayPeer(self._role, process.place.rank, hosts.named(process), process.actor, process.address, limit)
            for process in hosts.processes
        ]

    def shutdown(self) -> None:
        self._hosts.end("the run shut them down")


def _write_timeline(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        ray.timeline(str(path))
    except (OSError, RayError) as error:  # the run is done; a file about it is no reason to fail
        logger.warning("ray_init.timeline_json_file=%s could not be written: %s", path, error)


def connect(
    ray_init: RayInitConfig,
    *,
    processes: int,
    logs: Path | None,
    deadline_s: float,
    start_deadline_s: float,
    run: Path | None = None,
) -> type[RayWorkerGroup]:
    """Start a Ray on this machine, or join the one at `ray_init.address` (or the one this process already uses).

    processes         worker processes that will be started, of all pools
    logs              folder for a log file of each; None: kept only until `disconnect`
    deadline_s        the longest wait for one call
    start_deadline_s  the longest wait for processes to be placed and started
    run               the run folder, where every process reports what it waits for; None: nowhere
    """
    ours = not ray.is_initialized()
    address = ray_init.address or os.environ.get("RAY_ADDRESS") or "local"
    if ours:
        start_ray(address, ray_init.num_cpus or max(processes, 2))
    folder = logs or Path(tempfile.mkdtemp(prefix="burnish-logs-"))
    surroundings = Surroundings(str(folder.absolute()), str(run.absolute()) if run else None)
    cluster = Cluster(
        surroundings,
        deadline_s,
        start_deadline_s,
        ours,
        shared=not ours or address != "local",
        logs_are_ours=logs is None,
        timeline=ray_init.timeline_json_file,
    )
    waits.worker_reports.append(cluster.report)
    return type("RayWorkerGroup", (RayWorkerGroup,), {"cluster": cluster})
