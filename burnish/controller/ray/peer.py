"""RayPeer: one worker of a pool, as workers of other processes and the controller call it directly."""

import asyncio
from functools import lru_cache
from typing import Any, NamedTuple

import ray
from ray.cloudpickle import CloudPickler
from ray.exceptions import RayActorError, RayError

from burnish.controller.columns import flat, pack
from burnish.controller.host import WorkerReply
from burnish.controller.process import Address
from burnish.controller.ray import nodes
from burnish.controller.worker_status import WorkerStatus, quoted, reason
from burnish.errors import WorkerDied, WorkerError, WorkersLate
from burnish.waits import waiting


class Limit(NamedTuple):
    """Of one call: `trainer.worker_timeout`, as often as the rounds that it may wait for."""

    each_s: float
    rounds: int = 1

    @property
    def seconds(self) -> float:
        return self.each_s * self.rounds

    def __str__(self) -> str:
        return f"{self.seconds:g} s ({f'{self.rounds} × ' if self.rounds > 1 else ''}trainer.worker_timeout)"


class RayPeer:
    """A worker of another process, called from anywhere in the cluster."""

    def __init__(self, role: str, rank: int, where: str, actor: Any, address: Address, limit: Limit):
        self.rank, self.name = rank, f"{role}, {where}"
        self._role, self._actor, self._address, self._limit = role, actor, address, limit

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        skeleton, tensors = pack((args, kwargs), CloudPickler)
        ref = self._actor.direct.remote(self._role, method, skeleton, [flat(tensor) for tensor in tensors])
        try:
            with waiting("worker", "", f"{method} of {self.name}", self._limit.seconds) as wait:
                try:
                    reply: WorkerReply = await asyncio.wait_for(ref, self._limit.seconds)
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
            there: WorkerStatus = await asyncio.wait_for(self._actor.status.remote(), nodes.DUMP)
        except (TimeoutError, RayError):
            return "it does not answer: stopped, or stuck"
        return f"it {there}{quoted('where', there.stack)}"


@lru_cache(maxsize=64)  # of a process that has died, many calls report the same
def _last_lines(address: Address) -> str:
    return nodes.last_lines(address)
