"""RayCluster: a Ray that is connected to, with its nodes and what was started on it; and what is done on the node of a
worker process when the process itself does not answer any more."""

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cloudpickle import CloudPickler
from ray.exceptions import (
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayError,
    RayTaskError,
)
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from burnish.controller.cluster import DUMP, Cluster, Lacking, Line, Lost, Process
from burnish.controller.host import WorkerHost
from burnish.controller.pool import ResourcePool
from burnish.controller.process import Address, Surroundings, enter, gpu_among, kill_soon, tail
from burnish.controller.worker_status import no_room, reason
from burnish.errors import ConfigError, WorkerError
from burnish.waits import waiting

logger = logging.getLogger(__name__)

ENDING = 10.0  # seconds for other nodes to end processes
STARTING = 10.0  # seconds after which a wait for devices is logged
TINY = 0.01  # CPUs that a process reserves: any number of them may share a machine
AT_ONCE = 10_000  # calls of peers that a process runs at once


class RayHost(WorkerHost):
    pickler = CloudPickler

    def __init__(self, surroundings: Surroundings, name: str):
        node = ray.get_runtime_context().get_node_id()
        given = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        gpu = gpu_among(given, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        super().__init__(surroundings, enter(surroundings, name, ray.util.get_node_ip_address(), node, gpu))

    def keep(self, memory: np.ndarray) -> Any:
        return ray.put(memory)

    async def fetch(self, parts: Sequence[Any]) -> list[Any]:
        there = iter(await asyncio.gather(*(part for part in parts if isinstance(part, ray.ObjectRef))))
        return [next(there) if isinstance(part, ray.ObjectRef) else part for part in parts]


@dataclass(frozen=True)
class RayLine(Line):
    pickler = CloudPickler
    actor: Any

    def ask(self, job: str, *arguments: Any) -> Any:
        try:
            return getattr(self.actor, job).remote(*arguments)
        except RayError as error:
            raise lost(error) from error

    async def awaitable(self, job: str, *arguments: Any) -> Any:
        ref = self.ask(job, *arguments)
        try:
            return await ref
        except asyncio.CancelledError:
            ray.cancel(ref)
            raise
        except RayError as error:
            raise lost(error) from error

    def log(self, address: Address) -> str:
        """Read on the process's node where it cannot be read here."""
        text = tail(address)
        if text is None and address.node:
            with contextlib.suppress(RayError):  # that node may be gone
                text = ray.get(_on(address.node, tail, address), timeout=DUMP)
        return text if text is not None else "(cannot be read from here)"


def lost(error: RayError) -> Lost:
    """What a failure of Ray means for the call that met it."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, ObjectStoreFullError | OutOfDiskError):
        return Lost(no_room(str(cause)), Lacking.ROOM)
    if isinstance(cause, ObjectLostError):  # it belonged to a process that has died
        return Lost(reason(str(cause)), Lacking.DATA)
    if isinstance(error, RayTaskError):
        return Lost(str(cause), Lacking.CALL)
    return Lost(reason(str(error)))


@dataclass
class RayCluster(Cluster):
    ours: bool  # connected by `connect`, so disconnected with the run
    shared: bool  # a cluster that was there before: others may use it, and nodes may come
    timeline: str | None
    under: Callable[[str], list[str]] | None = None  # a profiler, by the name of a process that has a device

    def nodes(self) -> list[dict[str, Any]]:
        return [node for node in ray.nodes() if node["Alive"]]

    def available_devices(self, device: str) -> list[int] | None:
        if device == "cpu":
            return None
        found = [int(node["Resources"].get("GPU", 0)) for node in self.nodes()]
        if device == "cuda" and not sum(found):
            raise ConfigError(f"trainer.device=cuda, but Ray has no GPU: {self.described()}; set trainer.device=cpu")
        return found if sum(found) else None

    def described(self, *, on_gpus: bool = True) -> str:
        """The nodes with what they have, for messages."""
        each = []
        for node in self.nodes():
            gpus = f": {node['Resources'].get('GPU', 0):g} GPUs" if on_gpus else ""
            each.append(f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}){gpus}")
        free = f"; free now: {ray.available_resources().get('GPU', 0):g} GPUs" if on_gpus else ""
        return f"{len(each)} nodes: {'; '.join(each)}{free}"

    def launch(self, pool: ResourcePool) -> tuple[list[Process], PlacementGroup]:
        on_gpus = self.available_devices(pool.device) is not None
        reserved = _reserve(self, pool, on_gpus)
        nodes = [node for node, count in enumerate(pool.process_on_nodes) for _ in range(count)]
        processes = []
        for place, node in zip(pool.places(), nodes, strict=True):
            there = PlacementGroupSchedulingStrategy(reserved, placement_group_bundle_index=node)
            need = {"num_gpus": 1, "num_cpus": 0} if on_gpus else {"num_cpus": TINY}
            options = {"scheduling_strategy": there, "max_concurrency": AT_ONCE, **need}
            name = f"{pool.name}-{place.rank}"
            if self.under is not None and pool.device != "cpu":
                options["runtime_env"] = {"py_executable": shlex.join([*self.under(name), sys.executable])}
            actor = ray.remote(RayHost).options(**options).remote(self.surroundings, name)
            processes.append(Process(RayLine(actor), place))
        return processes, reserved

    def wait(self, handles: Sequence[Any], seconds: float) -> Sequence[Any]:
        if not ray.is_initialized():  # `ray.wait` would start one
            raise Lost("Ray does not answer: this process is not connected to Ray any more", Lacking.CLUSTER)
        try:
            return ray.wait(list(handles), num_returns=len(handles), timeout=seconds)[0]
        except RayError as error:
            raise Lost(f"Ray does not answer: {reason(str(error))}", Lacking.CLUSTER) from error

    def answer(self, handle: Any, seconds: float) -> Any:
        try:
            return ray.get(handle, timeout=seconds)
        except GetTimeoutError:
            raise
        except RayError as error:
            raise lost(error) from error

    def store(self, memory: np.ndarray) -> Any:
        try:
            return ray.put(memory)
        except (ObjectStoreFullError, OutOfDiskError) as error:
            raise lost(error) from error

    def stored(self, places: Sequence[Any], seconds: float) -> list[np.ndarray]:
        found: list[np.ndarray] = self.answer(list(places), seconds)
        return found

    def end(self, processes: Sequence[Process], reserved: PlacementGroup | None) -> None:
        if not ray.is_initialized():  # a Ray that has shut down has ended them itself
            return
        with contextlib.suppress(RayError):
            for process in processes:
                if isinstance(process.line, RayLine):
                    ray.kill(process.line.actor)
            if reserved is not None:
                remove_placement_group(reserved)
        end_processes([process.address for process in processes])

    def leave(self) -> None:
        if not ray.is_initialized():
            return
        if self.timeline:
            path = Path(self.timeline).expanduser()
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                ray.timeline(str(path))
            except (OSError, RayError) as error:  # the run is done; a file about it is no reason to fail
                logger.warning("ray_init.timeline_json_file=%s could not be written: %s", path, error)
        if self.ours:
            ray.shutdown()


def _reserve(cluster: RayCluster, pool: ResourcePool, on_gpus: bool) -> PlacementGroup:
    """Reserve the pool's devices, all or none; a ConfigError when they are not free in time."""
    bundles = [{"GPU": float(count)} if on_gpus else {"CPU": TINY * count} for count in pool.process_on_nodes]
    reserved = placement_group(bundles, strategy="STRICT_SPREAD" if len(bundles) > 1 else "PACK")
    patience = min(STARTING, cluster.start_deadline_s)
    if reserved.wait(patience):
        return reserved
    wanted = f"pool {pool.name!r} asks for {pool.process_on_nodes} {'GPUs' if on_gpus else 'processes'}, node by node"
    if cluster.shared:
        logger.warning("%s, and waits for them: there are %s", wanted, cluster.described(on_gpus=on_gpus))
        with waiting("worker", "", f"the devices of pool {pool.name}", cluster.start_deadline_s - patience) as wait:
            is_there = reserved.wait(cluster.start_deadline_s - patience)
            if not is_there:
                wait.overdue()
        if is_there:
            return reserved
    remove_placement_group(reserved)
    raise ConfigError(
        f"{wanted}; there are {cluster.described(on_gpus=on_gpus)}; lower trainer.n_gpus_per_node or trainer.nnodes, "
        "or free what others use"
    )


def start_ray(address: str, cpus: int) -> None:
    host, _, port = address.rpartition(":")
    try:
        if host and "/" not in address:  # Ray itself tries for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise _nothing_at(address, error) from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unless the user says so
    os.environ.setdefault("RAY_worker_register_timeout_seconds", "600")  # Ray kills slower ones, again and again
    # Ray starts as many idle processes as it has CPUs, so it gets no more than the run needs.
    # Its dashboard comes with ray[default], which brings aiohttp_cors.
    own: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": find_spec("aiohttp_cors") is not None}
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, **quiet, **(own if address == "local" else {}))
    except Exception as error:  # Ray raises a bare one if its node takes longer than 30 s to start
        if address == "local":
            raise WorkerError(f"Ray could not be started on this machine: {error}") from error
        raise _nothing_at(address, error) from error
    finally:
        if threading.current_thread() is threading.main_thread():  # Ray's would raise SystemExit wherever the run is
            signal.signal(signal.SIGTERM, on_sigterm)


def _nothing_at(address: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"ray_init.address={address}: there is no Ray to join: {error}; start one with `ray start --head`, or leave "
        "the key (and RAY_ADDRESS) out to start one for this run"
    )


def here() -> str:
    return str(ray.get_runtime_context().get_node_id())


def end_processes(processes: Sequence[Address]) -> None:
    """Make sure that processes that were asked to end have ended, on any node; on other nodes as far as possible."""
    by_node: dict[str, list[Address]] = defaultdict(list)
    for process in processes:
        by_node[process.node].append(process)
    own = by_node.pop(here(), [])
    away = []
    with contextlib.suppress(RayError):
        there = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        away = [_on(node, kill_soon, those) for node, those in by_node.items() if node in there]
    kill_soon(own)
    if away:
        with contextlib.suppress(RayError):
            ray.wait(away, num_returns=len(away), timeout=ENDING)


def _on(node: str, function: Callable[..., Any], *args: Any) -> Any:
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(*args)
