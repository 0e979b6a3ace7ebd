"""Hosts: the worker processes of one pool, which all its roles share."""

import pickle
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch

from burnish.controller.cluster import DUMP, Cluster, Lost, Process
from burnish.controller.future import JobFuture
from burnish.controller.host import INLINE, WorkerReply
from burnish.controller.pool import ResourcePool
from burnish.controller.wire import flat, pack
from burnish.controller.worker_status import SHOWN_WHOLE, LateProcess, WorkerStatus
from burnish.errors import BurnishError, DeadlineError, WorkerDied, WorkerError
from burnish.waits import waiting


class Hosts:
    """`ended` says why there are none any more."""

    def __init__(self, name: str, processes: list[Process], cluster: Cluster, reserved: Any = None):
        self.name, self.processes, self.cluster, self._reserved = name, processes, cluster, reserved
        self.roles: list[str] = []
        self.ended = ""
        self._giving = threading.Lock()  # of two threads' calls, all processes must see the same one first

    @classmethod
    def start(cls, cluster: Cluster, pool: ResourcePool) -> Self:
        """Start a process on every place of a pool and join them to a process group."""
        processes, reserved = cluster.launch(pool)
        hosts = cls(pool.name, processes, cluster, reserved)
        cluster.pools.append(hosts)
        try:
            hosts._meet()
        except (BurnishError, Lost) as error:
            hosts.end(f"they could not be started: {error}")
            if isinstance(error, Lost):
                raise WorkerError(f"pool {pool.name!r} could not be started: {error}") from error
            raise
        return hosts

    def _meet(self) -> None:
        asked = {process.line.ask("address"): process for process in self.processes}
        seconds = self.cluster.start_deadline_s
        with waiting("worker", "", f"the processes of pool {self.name} to start", seconds) as wait:
            ready = self.cluster.wait(list(asked), seconds)
            if len(ready) < len(asked):
                wait.overdue()
        for handle in ready:
            process = asked.pop(handle)
            try:
                process.address = self.cluster.answer(handle, DUMP)
            except Lost as lost:
                raise WorkerError(
                    f"rank {process.place.rank} of pool {self.name!r} could not be started: "
                    f"{self.cluster.why_gone(process, lost)}"
                ) from lost
            # Later than the controller's own deadline, which tells more than a collective that gave up.
            late = self.cluster.deadline_s + 60
            process.place = replace(process.place, gpu=process.address.gpu, timeout_s=late)
        if asked:
            ranks = ", ".join(str(process.place.rank) for process in asked.values())
            raise DeadlineError(
                f"ranks {ranks} of pool {self.name!r} have not started within {seconds:g} s "
                "(ray_wait_register_center_timeout)"
            )
        meeting = self.give("meeting", "open_store", [()]).get()[0] if len(self.processes) > 1 else None
        joining = [(process.place, meeting) for process in self.processes]
        self.give("joining the process group", "join", joining).get()

    def give(
        self, what: str, job: str, arguments: Sequence[tuple[Any, ...]], answering: int | None = None
    ) -> JobFuture:
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
                    handle = process.line.ask("run", process.given, what, job, parts, answers)
                    waiting[handle] = process, process.given
                    process.given += 1  # only now: a number that never arrives would block all that come after it
        except Lost as lost:
            why = f"it could not be given to all of them: {lost}"
            self.end(f"{what}: {why}")
            raise WorkerDied(f"{what} cannot run on pool {self.name!r}: {why}") from lost
        return JobFuture(self, what, waiting, answering)

    def _parts(self, what: str, arguments: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
        """The packed arguments of each process; the same ones are packed once."""
        try:
            packed = {key: self._packed(one) for key, one in {id(one): one for one in arguments}.items()}
        except Lost as lost:
            raise WorkerError(f"{what}: its arguments do not fit into {lost}") from lost
        except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
            raise WorkerError(f"{what}: its arguments cannot be sent to the workers: {error}") from error
        return [packed[id(one)] for one in arguments]

    def _packed(self, arguments: tuple[Any, ...]) -> list[Any]:
        """The bytes and the tensors' memory, or where these are kept; the smallest travel with the call."""
        skeleton, tensors = pack(arguments, self.processes[0].line.pickler)
        parts: list[Any] = [skeleton, *tensors]
        sizes = [len(skeleton), *(tensor.nbytes for tensor in tensors)]
        room = INLINE
        for number in sorted(range(len(parts)), key=sizes.__getitem__):
            room -= sizes[number]
            if number == 0:
                parts[0] = skeleton if room >= 0 else self.cluster.store(np.frombuffer(skeleton, np.uint8))
            else:
                parts[number] = flat(parts[number]) if room >= 0 else self.cluster.columns(parts[number])
        return parts

    def value_of(self, what: str, reply: WorkerReply, seconds: float) -> Any:
        """The result of a job; TimeoutError when it is not here in so many seconds. Large tensors are read where they
        are kept, and sent on as they are."""
        kept = {i: part for i, part in enumerate(reply.memory) if not isinstance(part, np.ndarray)}
        there = dict(zip(kept, self.cluster.stored(list(kept.values()), seconds), strict=True)) if kept else {}
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
            lines = process.line.log(process.address) if there is None and silent <= 2 * SHOWN_WHOLE else ""
            one = LateProcess(pool_of[id(process)][0].named(process), process.address.log, there, lines)
            (late if id(process) in mine else others).append(one)
        return late, others

    def status(self, processes: Sequence[Process]) -> dict[int, WorkerStatus | None]:
        """By the id of each, what processes are doing; None for one that does not answer."""
        found: dict[int, WorkerStatus | None] = dict.fromkeys(map(id, processes))
        asked: dict[Any, int] = {}
        try:
            for process in processes:
                asked[process.line.ask("status")] = id(process)
            ready = self.cluster.wait(list(asked), DUMP) if asked else []
        except Lost:
            return found
        for handle in ready:
            try:
                found[asked[handle]] = self.cluster.answer(handle, DUMP)
            except (Lost, TimeoutError):
                continue
        return found

    def end(self, why: str) -> None:
        """End all processes at once, and give back what was reserved for them."""
        if not self.ended:
            self.ended = f"the processes of pool {self.name!r} were ended: {why}"
            self.cluster.end(self.processes, self._reserved)
