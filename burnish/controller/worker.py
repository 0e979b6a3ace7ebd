"""Worker: the base of every class that holds a model and computes, and `WorkerPlace`: where one worker runs.

`ClassWithInitArgs` puts the place on the object before `__init__` runs. A worker made by hand is rank 0 of 1.
"""

import inspect
import logging
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from burnish.errors import BurnishError, OutOfMemory, WorkerError, text_of
from burnish.loop_thread import LoopThread
from burnish.models.device import measured_memory, pick_device
from burnish.spans import span

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerPlace:
    """Where a worker runs: its rank among all workers of its group, its rank on its node, and the kind of device."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    device: str = "auto"  # auto, cuda or cpu, as in trainer.device
    gpu: int | None = None  # which GPU of those that the process sees; None: that of its local rank
    # How long a collective may take. Process groups that workers make do not take it over: give it to them.
    timeout_s: float = 1800.0


def device_of(place: WorkerPlace) -> torch.device:
    """The device of a place: its own GPU, or the CPU. A process that sees one GPU only has that one."""
    own = place.local_rank if place.gpu is None else place.gpu
    return pick_device(place.device, own if torch.cuda.device_count() > 1 else 0)


class Worker:
    """Methods marked with `register` can be called through a WorkerGroup; the others are the worker's own."""

    place: WorkerPlace = WorkerPlace()

    @property
    def rank(self) -> int:
        return self.place.rank

    @property
    def world_size(self) -> int:
        return self.place.world_size

    @property
    def device(self) -> torch.device:
        return device_of(self.place)

    @cached_property
    def _coroutines(self) -> LoopThread:
        """The event loop of methods that are coroutine functions: one for all calls, so that what they open in one is
        good in the next."""
        loop = LoopThread(f"the coroutines of {type(self).__name__}", threaded=False)
        weakref.finalize(self, loop.close)
        return loop


@contextmanager
def typed_failures(worker_class: type, method: str, place: WorkerPlace) -> Iterator[None]:
    """The one boundary at which a worker's failures become typed; every executor calls methods inside it. A
    BurnishError rises as it is, too little memory as OutOfMemory, anything else as a WorkerError; both name the place.
    """
    began = time.perf_counter()
    log.debug("%s.%s begins", worker_class.__name__, method)
    try:
        yield
        log.debug("%s.%s: %.3f s", worker_class.__name__, method, time.perf_counter() - began)
    except BurnishError:
        raise
    except Exception as error:
        where = f"{worker_class.__name__}.{method} failed on rank {place.rank} of {place.world_size}"
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            raise OutOfMemory(f"{where}: out of memory, {measured_memory(device_of(place))}") from error
        raise WorkerError(f"{where}: {type(error).__name__}: {text_of(error)}") from error


def awaited(worker: Worker, outcome: Any) -> Any:
    """What a method returned; of a coroutine function, the result of running it to its end in this thread."""
    loop = worker._coroutines if inspect.iscoroutine(outcome) else None
    return outcome if loop is None else loop.result(loop.run(outcome))


def call_worker(worker: Worker, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with typed_failures(type(worker), method, worker.place), span(f"{type(worker).__name__}.{method}"):
        return awaited(worker, getattr(worker, method)(*args, **kwargs))


async def call_worker_async(worker: Worker, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """As `call_worker`, for a method that may be a coroutine function."""
    with typed_failures(type(worker), method, worker.place):
        outcome = getattr(worker, method)(*args, **kwargs)
        return await outcome if inspect.isawaitable(outcome) else outcome
