"""LocalWorkerGroup: one worker in this process.

No copies, no threads: a call runs when it is made, also a non-blocking one, whose future only keeps the outcome.
A worker sees the caller's own tensors, so a method must not change its arguments in place (on Ray it could not).
"""

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch

from burnish.controller.dispatch import WorkerCall, check_direct
from burnish.controller.group import BoundMethod, ClassWithInitArgs, Future, WorkerGroup
from burnish.controller.pool import ResourcePool
from burnish.controller.worker import Worker, awaited, call_worker, call_worker_async, typed_failures
from burnish.errors import BurnishError, ConfigError
from burnish.models.device import pick_device
from burnish.spans import span


class LocalMethod(BoundMethod):
    """Goes straight to the worker's method: one frame is between it and the caller."""

    _group: "LocalWorkerGroup"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if not self._mark.blocking:
            return self.start(*args, **kwargs)
        split, collect = self._split(args, kwargs)
        worker, outputs = self._group.worker, []
        for call in split.calls:
            name = f"{self._group.worker_class.__name__}.{self._name}"
            with typed_failures(self._group.worker_class, self._name, worker.place), span(name):
                outputs.append(awaited(worker, getattr(worker, self._name)(*call.args, **call.kwargs)))
        return self._naming(collect, split, outputs)


class LocalWorkerGroup(WorkerGroup):
    """A group of one: `worker` is the object itself, for tests and for a look inside."""

    method_class = LocalMethod

    def __init__(self, worker: Worker):
        self.worker = worker
        super().__init__(type(worker), world_size=1)

    @classmethod
    def spawn(cls, pool: ResourcePool, workers: Mapping[str, ClassWithInitArgs]) -> dict[str, Self]:
        if pool.world_size != 1:
            raise ConfigError(
                f"the local executor runs one process, but pool {pool.name!r} has {pool.world_size}; set "
                "trainer.nnodes=1 and trainer.n_gpus_per_node=1, or trainer.executor=ray"
            )
        [place] = pool.places()
        return {name: cls(made.make(place)) for name, made in workers.items()}

    @classmethod
    def available_devices(cls, device: str = "auto") -> list[int] | None:
        return [torch.cuda.device_count()] if pick_device(device).type == "cuda" else None

    def submit(self, method: str, calls: list[WorkerCall], answering: int | None = None) -> Future:
        return Finished(lambda: [call_worker(self.worker, method, call.args, call.kwargs) for call in calls])

    def peers(self, rounds: int = 1) -> "list[LocalPeer]":
        return [LocalPeer(self.worker)]

    def shutdown(self) -> None:
        """The worker lives in this process, which continues."""


class LocalPeer:
    """The worker of this process, called on the caller's event loop."""

    def __init__(self, worker: Worker):
        self._worker, self.rank, self.name = worker, worker.rank, f"{type(worker).__name__} {worker.rank}"

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        check_direct(type(self._worker), method)
        return await call_worker_async(self._worker, method, args, kwargs)


class Finished:
    """The future of something that is run at once; it keeps the results, or the error, for `get`."""

    def __init__(self, run: Callable[[], list[Any]]):
        self._results: list[Any] = []
        self._error: BurnishError | None = None
        try:
            self._results = run()
        except BurnishError as error:
            self._error = error

    def get(self, timeout: float | None = None) -> list[Any]:
        if self._error is not None:
            raise self._error
        return self._results
