"""WorkerGroup: all workers of one class. Its registered methods look local: `actor_wg.compute_log_prob(data)`.

A call is: split the arguments (dispatch.py), start it on the workers (`submit`), join the results.
`actor_wg.compute_log_prob.start(data)` gives a future at once, so that pools compute at the same time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from burnish.controller.dispatch import CallSplit, Execute, Registered, WorkerCall, only_one, registered_methods
from burnish.controller.pool import ResourcePool
from burnish.controller.worker import Worker, WorkerPlace, typed_failures
from burnish.errors import WorkerError

W = TypeVar("W", bound=Worker)


class Future(Protocol):
    """A result that may still be on its way."""

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the result, at most `timeout` seconds (then a DeadlineError), or raise what the call raised."""


class Peer(Protocol):
    """One worker, to be called by a worker of another group (and sent to it as an argument)."""

    rank: int
    name: str

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method that is registered with Dispatch.DIRECT_ROLLOUT_METHOD and wait for its result. Many calls run
        at once. Cancelling the wait cancels the call."""


class ClassWithInitArgs(Generic[W]):
    """A worker class and what its `__init__` takes, to be made later, where the worker will run."""

    def __init__(self, cls: type[W], *args: Any, **kwargs: Any):
        self.cls, self.args, self.kwargs = cls, args, kwargs

    def make(self, place: WorkerPlace) -> W:
        """Make the worker of this place; it knows its place before its `__init__` runs."""
        worker = self.cls.__new__(self.cls)
        worker.place = place
        with typed_failures(self.cls, "__init__", place):
            worker.__init__(*self.args, **self.kwargs)  # type: ignore[misc]
        return worker


class _Collected:
    """The future of a whole call: the workers' results, joined once they are there."""

    def __init__(self, future: Future, collect: Callable[[list[Any]], Any]):
        self._future, self._collect = future, collect

    def get(self, timeout: float | None = None) -> Any:
        return self._collect(self._future.get(timeout))


class BoundMethod:
    """A registered method of a group, to be called, or started for a future."""

    def __init__(self, group: "WorkerGroup", name: str, mark: Registered):
        self._group, self._name, self._mark = group, name, mark

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        future = self.start(*args, **kwargs)
        return future.get() if self._mark.blocking else future

    def start(self, /, *args: Any, **kwargs: Any) -> Future:
        """Start the call on the workers; the future's `get` waits for the joined result."""
        split, collect = self._split(args, kwargs)
        future = self._group.submit(self._name, split.calls, split.answering)
        return _Collected(future, partial(self._naming, collect, split))

    def _split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[CallSplit, Callable[[CallSplit, list[Any]], Any]]:
        split: CallSplit = self._naming(self._mark.pair.dispatch, self._group.world_size, *args, **kwargs)
        if self._mark.execute is Execute.RANK_ZERO:
            return split._replace(calls=split.calls[:1], answering=None), only_one
        return split, self._mark.pair.collect

    def _naming(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a dispatch or collect function; its complaints get the method's name in front."""
        try:
            return function(*args, **kwargs)
        except WorkerError as error:
            raise WorkerError(f"{self._group.worker_class.__name__}.{self._name} {error}") from error


class WorkerGroup(ABC):
    """The workers of one class. Subclasses say how workers are made and called."""

    method_class: ClassVar[type[BoundMethod]] = BoundMethod  # what a registered method is on the group

    def __init__(self, worker_class: type[Worker], world_size: int):
        self.worker_class, self.world_size = worker_class, world_size
        self.methods = registered_methods(worker_class)
        for name, mark in self.methods.items():
            if hasattr(type(self), name) or name in vars(self):
                raise WorkerError(f"{worker_class.__name__}.{name} has the name of a WorkerGroup's own; rename it")
            setattr(self, name, self.method_class(self, name, mark))

    @classmethod
    @abstractmethod
    def spawn(cls, pool: ResourcePool, workers: Mapping[str, ClassWithInitArgs]) -> dict[str, Self]:
        """Make a group of each of these classes, with a worker on every place of the pool; they share its devices."""

    @classmethod
    @abstractmethod
    def available_devices(cls, device: str = "auto") -> list[int] | None:
        """The number of devices of every node; None where workers run on CPUs, which any number can share."""

    @abstractmethod
    def submit(self, method: str, calls: list[WorkerCall], answering: int | None = None) -> Future:
        """Start the i-th call on worker i. The future gives the list of results, of the first `answering` workers where
        that is said; errors of any worker rise from its `get`."""

    @abstractmethod
    def peers(self, rounds: int = 1) -> Sequence[Peer]:
        """The workers, by rank, for workers of other groups to call. A call of theirs may wait until so many rounds
        have passed, and has the time of as many calls."""

    @abstractmethod
    def shutdown(self) -> None:
        """End the processes of the workers, and so of all groups that share them. A second time does nothing."""

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are not bound; by way of vars, because a copy being made has no attributes yet.
        there = ", ".join(sorted(vars(self).get("methods", ()))) or "none"
        worker = getattr(vars(self).get("worker_class"), "__name__", "the worker")
        raise AttributeError(f"{name!r} is not a registered method of {worker}; registered are: {there}")
