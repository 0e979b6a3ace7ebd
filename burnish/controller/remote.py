"""RemoteWorkerGroup: the workers of one role in processes of their own, and RemotePeer: one of them, as workers of
other processes and the controller call it directly.

A call waits for the answer of every worker. What unblocks it: the answers; a failure and a short grace, in which a more
telling one may come; the end of a process; the deadline. When one worker has left a common call while others wait for
it in a collective, after a death, and past the deadline, all processes of the pool are ended: every later call raises
WorkerDied. A large tensor is kept once on a machine, where all its processes read it.
"""

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Self

from burnish.controller.cluster import DUMP, Cluster, Lacking, Line, Lost, Process
from burnish.controller.dispatch import WorkerCall
from burnish.controller.future import JobFuture
from burnish.controller.group import ClassWithInitArgs, WorkerGroup
from burnish.controller.host import WorkerReply
from burnish.controller.hosts import Hosts
from burnish.controller.pool import ResourcePool
from burnish.controller.process import Address
from burnish.controller.wire import flat, pack
from burnish.controller.worker import Worker
from burnish.controller.worker_status import WorkerStatus, quoted
from burnish.errors import BurnishError, WorkerDied, WorkerError, WorkersLate
from burnish.waits import waiting


class RemotePeer:
    def __init__(self, role: str, process: Process, where: str, each_s: float, rounds: int):
        self.rank, self.name = process.place.rank, f"{role}, {where}"
        self._role, self._line, self._address = role, process.line, process.address
        self._seconds = each_s * rounds
        self._limit = f"{self._seconds:g} s ({f'{rounds} × ' if rounds > 1 else ''}trainer.worker_timeout)"

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        skeleton, tensors = pack((args, kwargs), self._line.pickler)
        memory = [flat(tensor) for tensor in tensors]
        try:
            with waiting("worker", "", f"{method} of {self.name}", self._seconds) as wait:
                answer = self._line.awaitable("direct", self._role, method, skeleton, memory)
                try:
                    reply: WorkerReply = await asyncio.wait_for(answer, self._seconds)
                except TimeoutError:
                    wait.overdue()
                    raise
        except TimeoutError as error:
            late = f"{method} of {self.name} has not finished within {self._limit}"
            raise WorkersLate(f"{late}; {await self._status()}") from error
        except Lost as lost:
            if lost.lacking is Lacking.PROCESS:
                died = f"{self.name}, died while it ran {method}: {lost}"
                raise WorkerDied(died + await asyncio.to_thread(_last_lines, self._line, self._address)) from lost
            raise WorkerError(f"{method} failed on {self.name}: {lost}") from lost
        return reply.value(f"{method} of {self.name}")

    async def _status(self) -> str:
        try:
            there: WorkerStatus = await asyncio.wait_for(self._line.awaitable("status"), DUMP)
        except (TimeoutError, Lost):
            return "it does not answer: stopped, or stuck"
        return f"it {there}{quoted('where', there.stack)}"


@lru_cache(maxsize=64)  # of a process that has died, many calls report the same
def _last_lines(line: Line, address: Address) -> str:
    return line.last_lines(address)


class RemoteWorkerGroup(WorkerGroup):
    cluster: ClassVar[Cluster]

    def __init__(self, role: str, worker_class: type[Worker], hosts: Hosts):
        self._role, self._hosts = role, hosts
        super().__init__(worker_class, len(hosts.processes))

    @classmethod
    def of(cls, cluster: Cluster) -> type[Self]:
        """The class whose groups are on this cluster."""
        return type(cls.__name__, (cls,), {"cluster": cluster})

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
        return cls.cluster.available_devices(device)

    @classmethod
    def disconnect(cls) -> None:
        """End all processes of this run, and what else was started for it."""
        cls.cluster.disconnect()

    def submit(self, method: str, calls: list[WorkerCall], answering: int | None = None) -> JobFuture:
        same: dict[Any, tuple[Any, ...]] = {}  # calls of the same objects are sent as one
        arguments = []
        for call in calls:
            key = (id(call.args), tuple((name, id(value)) for name, value in call.kwargs.items()))
            arguments.append(same.setdefault(key, (self._role, method, call.args, call.kwargs)))
        return self._hosts.give(f"{self.worker_class.__name__}.{method}", "call", arguments, answering)

    def peers(self, rounds: int = 1) -> list[RemotePeer]:
        hosts, each_s = self._hosts, self.cluster.deadline_s
        return [RemotePeer(self._role, process, hosts.named(process), each_s, rounds) for process in hosts.processes]

    def apart(self) -> list[Self]:
        """A group for each worker, so that each can be called when the others are busy."""
        alone = [Hosts(self._hosts.name, [process], self.cluster) for process in self._hosts.processes]
        for hosts in alone:
            hosts.roles = self._hosts.roles
        return [type(self)(self._role, self.worker_class, hosts) for hosts in alone]

    def shutdown(self) -> None:
        self._hosts.end("the run shut them down")
