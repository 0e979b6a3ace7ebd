"""Cluster: the worker processes of a run, and how they are started, reached and ended. `processes/` starts them on this
machine; `ray/` has Ray do it, on one or many. Hosts, JobFuture and RemoteWorkerGroup know only what is here.

    Line      how one process is reached; it travels to other processes, which reach it the same way
    Cluster   starts and ends processes, waits for their answers, and keeps large tensors where all can read them
    Lost      there will be no answer, and why
"""

import pickle
import shutil
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from burnish import waits
from burnish.controller.pool import ResourcePool
from burnish.controller.process import Address, Surroundings
from burnish.controller.wire import Memo, flat
from burnish.controller.worker import WorkerPlace
from burnish.controller.worker_status import quoted

if TYPE_CHECKING:
    from burnish.controller.hosts import Hosts

DUMP = 5.0  # seconds for a process to say where it is, or for its node to give the log

Handle = Any  # of something that a process was asked for: what `Cluster.wait` and `Cluster.answer` take


class Lacking(Enum):
    PROCESS = auto()  # the process that was asked has ended
    DATA = auto()  # what it needs or gives belonged to a process that has ended
    ROOM = auto()  # what is sent does not fit where large tensors are kept
    CALL = auto()  # the call failed on its way
    CLUSTER = auto()  # nothing can be asked any more


class Lost(Exception):
    def __init__(self, text: str, lacking: Lacking = Lacking.PROCESS):
        super().__init__(text)
        self.lacking = lacking


class Line(ABC):
    pickler: ClassVar[type[pickle.Pickler]]

    @abstractmethod
    def ask(self, job: str, *arguments: Any) -> Handle:
        """Begin `address`, `run` or `status` of its WorkerHost."""

    @abstractmethod
    def awaitable(self, job: str, *arguments: Any) -> Awaitable[Any]:
        """Begin `status` or `direct`. Giving up the wait cancels the call; Lost: there is no answer."""

    @abstractmethod
    def log(self, address: Address) -> str:
        """The last lines of its log, also when the process is gone."""

    def last_lines(self, address: Address) -> str:
        """The same, to go below a message."""
        return quoted(f"last lines of {address.log}", self.log(address))


@dataclass
class Process:
    """A worker process as the controller sees it."""

    line: Line
    place: WorkerPlace
    address: Address = field(default_factory=lambda: Address(0, "", "", "", "", 0))
    given: int = 0  # jobs given out so far: the number of the next one
    done: int = 0  # jobs that are known to have ended
    free_since: float = float("-inf")  # when the last of them did


@dataclass
class Cluster(ABC):
    surroundings: Surroundings
    deadline_s: float  # the longest wait for one call
    start_deadline_s: float  # the longest wait for processes to be placed and started
    logs_are_ours: bool  # they are removed with the processes
    pools: "list[Hosts]" = field(default_factory=list, init=False)
    connected: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.columns: Memo = Memo(lambda tensor: self.store(flat(tensor)))  # where tensors are
        waits.worker_reports.append(self.report)

    @abstractmethod
    def available_devices(self, device: str) -> list[int] | None:
        """The number of processes with a device that every node has room for; None where workers run on CPUs."""

    @abstractmethod
    def launch(self, pool: ResourcePool) -> tuple[list[Process], Any]:
        """Begin to start a process on every place of a pool. Returns also what was reserved for them."""

    @abstractmethod
    def wait(self, handles: Sequence[Handle], seconds: float) -> Sequence[Handle]:
        """Those that are answered, once all are or the seconds are over."""

    @abstractmethod
    def answer(self, handle: Handle, seconds: float) -> Any:
        """What was answered; TimeoutError: it is not here in time."""

    @abstractmethod
    def store(self, memory: np.ndarray) -> Any:
        """Keep memory where all processes can read it; returns where."""

    @abstractmethod
    def stored(self, places: Sequence[Any], seconds: float) -> list[np.ndarray]:
        """The memory that is kept there."""

    @abstractmethod
    def end(self, processes: Sequence[Process], reserved: Any) -> None:
        """End processes, wait until they are gone, and give back what was reserved for them."""

    def why_gone(self, process: Process, lost: Lost) -> str:
        """What is known of the end of a process."""
        return str(lost)

    @abstractmethod
    def leave(self) -> None:
        """End what else was started for the run."""

    def disconnect(self) -> None:
        for hosts in self.pools:
            hosts.end("the run disconnected from them")
        if self.connected:
            self.leave()
        self.connected = False
        if self.report in waits.worker_reports:
            waits.worker_reports.remove(self.report)
        if self.logs_are_ours:
            shutil.rmtree(self.surroundings.logs, ignore_errors=True)

    def report(self) -> str:
        """What every process is doing, for a dump; each also writes the stacks of all its threads to its log."""
        lines = []
        for pool in [pool for pool in self.pools if not pool.ended]:
            found = pool.status(pool.processes)
            for process in pool.processes:
                there = found[id(process)]
                lines.append(f"{pool.named(process)}: {there or 'does not answer: stopped, or stuck'}")
                lines[-1] += quoted("where", there.stack) if there else ""
        return "\n".join(["workers:", *(lines or ["(none)"]), ""])
