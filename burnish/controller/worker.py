"""Worker: the base of every class that holds a model and computes, and `Place`: where one worker runs.

A group makes workers through `ClassWithInitArgs` (group.py), which puts the place on the object before `__init__`
runs: a worker knows its rank from its first line on. A worker made by hand is rank 0 of 1.
`call_worker` is the one boundary at which a worker's failures become typed; every executor calls methods through it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from burnish.errors import BurnishError, WorkerError
from burnish.models.device import pick_device


@dataclass(frozen=True)
class Place:
    """Where a worker runs: its rank among all workers of its group, its rank on its node, and the kind of device."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    device: str = "auto"  # auto, cuda or cpu, as in trainer.device


class Worker:
    """Methods marked with `register` can be called through a WorkerGroup; the others are the worker's own."""

    place: Place = Place()

    @property
    def rank(self) -> int:
        return self.place.rank

    @property
    def world_size(self) -> int:
        return self.place.world_size

    @property
    def device(self) -> torch.device:
        """The device of this worker: its own GPU, or the CPU."""
        return pick_device(self.place.device, self.place.local_rank)


def call_worker(worker: Worker, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a worker's method. A BurnishError rises as it is; anything else as a WorkerError that names the place."""
    try:
        return getattr(worker, method)(*args, **kwargs)
    except BurnishError:
        raise
    except Exception as error:
        raise failed(type(worker), method, worker.place, error) from error


def failed(worker_class: type, method: str, place: Place, error: Exception) -> WorkerError:
    """The error for a worker that raised something it did not mean to."""
    where = f"{worker_class.__name__}.{method} failed on rank {place.rank} of {place.world_size}"
    return WorkerError(f"{where}: {type(error).__name__}: {error}")
