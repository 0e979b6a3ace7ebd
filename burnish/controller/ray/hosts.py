"""Hosts: the worker processes of one pool, which all its roles share."""

import asyncio
import contextlib
import logging
import os
import pickle
import shlex
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import ray
import torch
from ray.cloudpickle import CloudPickler
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from burnish.controller.host import WorkerHost, WorkerReply
from burnish.controller.pool import ResourcePool
from burnish.controller.process import Address, Surroundings, enter, gpu_among
from burnish.controller.ray.cluster import DUMP, Cluster, end_processes, log_of
from burnish.controller.ray.future import RayFuture
from burnish.controller.wire import flat, pack
from burnish.controller.worker import WorkerPlace
from burnish.controller.worker_status import SHOWN_WHOLE, LateProcess, WorkerStatus, no_room, reason
from burnish.errors import BurnishError, ConfigError, DeadlineError, WorkerDied, WorkerError
from burnish.waits import waiting

logger = logging.getLogger(__name__)

INLINE = 50_000  # bytes of a call's arguments that travel with the call itself; Ray takes up to 100 KB so
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
        return ray.put(memory) if memory.nbytes > INLINE else memory

    async def fetch(self, parts: Sequence[Any]) -> list[Any]:
        there = iter(await asyncio.gather(*(part for part in parts if isinstance(part, ray.ObjectRef))))
        return [next(there) if isinstance(part, ray.ObjectRef) else part for part in parts]


@dataclass
class Process:
    """A worker process as the controller sees it."""

    actor: Any
    place: WorkerPlace
    address: Address
    given: int = 0  # jobs given out so far: the number of the next one
    done: int = 0  # jobs that are known to have ended
    free_since: float = float("-inf")  # when the last of them did


class Hosts:
    """The processes of one pool, which all its roles share. `ended` says why there are none any more."""

    def __init__(self, name: str, processes: list[Process], cluster: Cluster, reserved: PlacementGroup | None = None):
        self.name, self.processes, self.cluster, self._reserved = name, processes, cluster, reserved
        self.roles: list[str] = []
        self.ended = ""
        self._giving = threading.Lock()  # of two threads' calls, all processes must see the same one first

    @classmethod
    def start(cls, cluster: Cluster, pool: ResourcePool) -> Self:
        """Start a process on every place of a pool and join them to a process group."""
        on_gpus = cluster.gpus(pool.device) is not None
        reserved = _reserve(cluster, pool, on_gpus)
        nodes = [node for node, count in enumerate(pool.process_on_nodes) for _ in range(count)]
        processes = []
        for place, node in zip(pool.places(), nodes, strict=True):
            there = PlacementGroupSchedulingStrategy(reserved, placement_group_bundle_index=node)
            need = {"num_gpus": 1, "num_cpus": 0} if on_gpus else {"num_cpus": TINY}
            options = {"scheduling_strategy": there, "max_concurrency": AT_ONCE, **need}
            name = f"{pool.name}-{place.rank}"
            if cluster.under is not None and pool.device != "cpu":
                python = shlex.join([*cluster.under(name), sys.executable])
                options["runtime_env"] = {"py_executable": python}
            actor = ray.remote(RayHost).options(**options).remote(cluster.surroundings, name)
            # Later than the controller's own deadline, which tells more than a collective that gave up.
            place = replace(place, timeout_s=cluster.deadline_s + 60)
            processes.append(Process(actor, place, Address(0, "", "", "", "", 0)))
        hosts = cls(pool.name, processes, cluster, reserved)
        cluster.pools.append(hosts)
        try:
            hosts._meet()
        except (BurnishError, RayError) as error:
            hosts.end(f"they could not be started: {error}")
            if isinstance(error, RayError):
                raise WorkerError(f"pool {pool.name!r} could not be started: {reason(str(error))}") from error
            raise
        return hosts

    def _meet(self) -> None:
        asked = {process.actor.address.remote(): process for process in self.processes}
        seconds = self.cluster.start_deadline_s
        with waiting("worker", "", f"the processes of pool {self.name} to start", seconds) as wait:
            ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=seconds)
            if late:
                wait.overdue()
        for ref in ready:
            try:
                asked[ref].address = ray.get(ref)
                asked[ref].place = replace(asked[ref].place, gpu=asked[ref].address.gpu)
            except RayError as error:
                raise WorkerError(
                    f"rank {asked[ref].place.rank} of pool {self.name!r} could not be started: {reason(str(error))}"
                ) from error
        if late:
            ranks = ", ".join(str(asked[ref].place.rank) for ref in late)
            raise DeadlineError(
                f"ranks {ranks} of pool {self.name!r} have not started within {self.cluster.start_deadline_s:g} s "
                "(ray_wait_register_center_timeout)"
            )
        meeting = self.give("meeting", "open_store", [()]).get()[0] if len(self.processes) > 1 else None
        joining = [(process.place, meeting) for process in self.processes]
        self.give("joining the process group", "join", joining).get()

    def give(
        self, what: str, job: str, arguments: Sequence[tuple[Any, ...]], answering: int | None = None
    ) -> RayFuture:
        """Start a job of WorkerHost on the first processes, with the i-th arguments on the i-th. With `answering` it is
        one that they do together, of which so many results are wanted."""
        if self.ended:
            raise WorkerDied(f"{what} cannot run: {self.ended}")
        packed = self._parts(what, arguments)
        waiting: dict[Any, tuple[Process, int]] = {}
        try:
            with self._giving:
                for rank, (process, parts) in enumerate(zip(self.processes, packed, strict=False)):
                    answers = answering is None or rank < answering
                    ref = process.actor.run.remote(process.given, what, job, parts, answers)
                    waiting[ref] = process, process.given
                    process.given += 1  # only now: a number that never arrives would block all that come after it
        except RayError as error:
            why = f"it could not be given to all of them: {reason(str(error))}"
            self.end(f"{what}: {why}")
            raise WorkerDied(f"{what} cannot run on pool {self.name!r}: {why}") from error
        return RayFuture(self, what, waiting, answering)

    def _parts(self, what: str, arguments: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
        """The packed arguments of each process; the same ones are packed once."""
        try:
            packed = {key: self._packed(one) for key, one in {id(one): one for one in arguments}.items()}
        except (ObjectStoreFullError, OutOfDiskError) as error:
            raise WorkerError(
                f"{what}: its arguments do not fit into {no_room(socket.gethostname(), str(error))}"
            ) from error
        except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
            raise WorkerError(f"{what}: its arguments cannot be sent to the workers: {error}") from error
        return [packed[id(one)] for one in arguments]

    def _packed(self, arguments: tuple[Any, ...]) -> list[Any]:
        """The bytes and the tensors' memory, or where they are in the object store; the smallest go with the call."""
        skeleton, tensors = pack(arguments, CloudPickler)
        parts: list[Any] = [skeleton, *tensors]
        sizes = [len(skeleton), *(tensor.nbytes for tensor in tensors)]
        room = INLINE
        for number in sorted(range(len(parts)), key=sizes.__getitem__):
            room -= sizes[number]
            if number == 0:
                parts[0] = skeleton if room >= 0 else ray.put(skeleton)
            else:
                parts[number] = flat(parts[number]) if room >= 0 else self.cluster.columns(parts[number])
        return parts

    def value_of(self, what: str, reply: WorkerReply, seconds: float) -> Any:
        """The result of a job; GetTimeoutError when it is not here in so many seconds. Its large tensors are in the
        object store, are read there, and sent on as they are."""
        kept = {i: part for i, part in enumerate(reply.memory) if isinstance(part, ray.ObjectRef)}
        there = dict(zip(kept, ray.get(list(kept.values()), timeout=seconds), strict=True)) if kept else {}
        memory = [there.get(i, part) for i, part in enumerate(reply.memory)]

        def note(number: int, tensor: torch.Tensor) -> None:
            if number in kept:
                self.cluster.columns.note(tensor, kept[number])

        return reply._replace(memory=memory).value(what, note)

    def named(self, process: Process) -> str:
        roles = f" ({', '.join(self.roles)})" if self.roles else ""
        return (
            f"rank {process.place.rank} of {process.place.world_size} of pool {self.name!r}{roles}, {process.address}"
        )

    def late(self, waiting: Sequence[Process]) -> tuple[list[LateProcess], list[LateProcess]]:
        """Where processes are that somebody waits for; and those that they may wait for themselves: the others of this
        run that are busy with calls of peers, or do not answer."""
        pools = [*(pool for pool in self.cluster.pools if not pool.ended), self]
        pool_of = {id(process): (pool, process) for pool in pools for process in pool.processes}
        mine = {id(process) for process in waiting}
        asked = sorted((process for _, process in pool_of.values()), key=lambda process: id(process) not in mine)
        found = self.status(asked)
        late: list[LateProcess] = []
        others: list[LateProcess] = []
        silent = 0
        for process in asked:
            there = found[id(process)]
            if id(process) not in mine and there is not None and not there.peers:
                continue
            silent += there is None
            lines = log_of(process.address) if there is None and silent <= 2 * SHOWN_WHOLE else ""
            one = LateProcess(pool_of[id(process)][0].named(process), process.address.log, there, lines)
            (late if id(process) in mine else others).append(one)
        return late, others

    @staticmethod
    def status(processes: Sequence[Process]) -> dict[int, WorkerStatus | None]:
        """By the id of each, what processes are doing; None for one that does not answer."""
        found: dict[int, WorkerStatus | None] = dict.fromkeys(map(id, processes))
        with contextlib.suppress(RayError):
            asked = {process.actor.status.remote(): id(process) for process in processes}
            ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=DUMP) if asked else ([], [])
            for ref in ready:
                with contextlib.suppress(RayError):
                    found[asked[ref]] = ray.get(ref)
        return found

    def end(self, why: str) -> None:
        """End all processes at once, and give back what was reserved for them."""
        if self.ended:
            return
        self.ended = f"the processes of pool {self.name!r} were ended: {why}"
        if ray.is_initialized():
            with contextlib.suppress(RayError):  # a Ray that has shut down has ended them itself
                for process in self.processes:
                    ray.kill(process.actor)
                if self._reserved is not None:
                    remove_placement_group(self._reserved)
            end_processes([process.address for process in self.processes])


def _reserve(cluster: Cluster, pool: ResourcePool, on_gpus: bool) -> PlacementGroup:
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
