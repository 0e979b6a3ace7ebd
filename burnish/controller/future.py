"""JobFuture: the outcome of one call on the processes of a pool, or the error that says why there is none."""

import time
from typing import TYPE_CHECKING, Any, TypeVar

from burnish.controller.cluster import Lacking, Lost
from burnish.controller.process import say_again
from burnish.controller.wire import Weight
from burnish.controller.worker_status import late
from burnish.errors import BurnishError, DeadlineError, WorkerDied, WorkerError, WorkersLate
from burnish.waits import Wait, ran, waiting

if TYPE_CHECKING:
    from burnish.controller.cluster import Process
    from burnish.controller.hosts import Hosts

GRACE = 2.0  # seconds that others have after the first failure
BROKEN_GRACE = 15.0  # the same where a collective lost a worker, whose death may be reported late
LOOK = 0.2  # seconds between looks for failures while answers come in

E = TypeVar("E", bound=BurnishError)


class JobFuture:
    """The outcome of a job; `get` gives the results by rank, or raises the most telling failure.

    The deadline (`trainer.worker_timeout`) counts from when the job was given out, whenever `get` is called. Jobs of
    the same processes (colocated roles that are started together) run one after another: a job's time begins when the
    one before it is known to have ended, and each one of which that is not known yet adds its own deadline.
    """

    def __init__(self, hosts: "Hosts", what: str, waiting: dict[Any, tuple["Process", int]], answering: int | None):
        self._hosts, self._what, self._waiting, self._answering = hosts, what, waiting, answering
        self._given = time.monotonic()
        self._values: dict[int, Any] = {}
        self._failures: list[tuple[Weight, int, BurnishError]] = []
        self._dead: dict[int, Process] = {}  # by rank
        self._failed: BurnishError | None = None

    def get(self, timeout: float | None = None) -> list[Any]:
        if self._failed is None and self._waiting:
            left = self._due() - time.monotonic()
            with waiting("worker", "", f"{self._what} on pool {self._hosts.name}", left) as wait:
                self._failed = self._wait(timeout, wait)
        if self._failed is not None:
            raise self._failed
        return [self._values[rank] for rank in sorted(self._values)][: self._answering]

    def _due(self) -> float:
        """The deadline, as a moment."""
        times = [
            max(self._given, process.free_since) + max(1, number - process.done + 1) * self._hosts.cluster.deadline_s
            for process, number in self._waiting.values()
        ]
        return max(times, default=self._given)

    def _wait(self, timeout: float | None, wait: Wait) -> BurnishError | None:
        own = None if timeout is None else time.monotonic() + timeout
        grace_from: float | None = None
        left = LOOK
        while self._waiting and left > 0:
            due = self._due()  # which moves while jobs before this one end
            wait.deadline = ran() + due - time.monotonic()
            end = due if own is None else min(due, own)
            if self._failures:
                grace_from = grace_from or time.monotonic()
                only_broken = all(weight is Weight.BROKEN for weight, _, _ in self._failures)
                end = min(end, grace_from + (BROKEN_GRACE if only_broken else GRACE))
            left = end - time.monotonic()  # where nothing is left, there is still one look
            try:
                seconds = max(0.0, min(left, LOOK))
                ready = self._hosts.cluster.wait(list(self._waiting), seconds)
            except Lost as lost:
                why = self._hosts.ended or str(lost)
                self._hosts.end(why)
                return _from(WorkerDied(f"{self._what} cannot finish: {why}"), lost)
            for handle in ready:
                self._take(handle, max(left, LOOK))
        if self._failures:
            return self._most_telling()
        if not self._waiting:
            return None
        if own is not None and own < self._due():
            raise DeadlineError(f"{self._what} has not finished within {timeout:g} s; it continues")
        wait.overdue(until_written=True)  # before the processes are ended
        processes, others = self._hosts.late([process for process, _ in self._waiting.values()])
        seconds = self._hosts.cluster.deadline_s
        what = f"{self._what} has not finished within {seconds:g} s (trainer.worker_timeout)"
        self._hosts.end(what)
        return WorkersLate(late(what, len(self._hosts.processes), processes, others))

    def _take(self, handle: Any, seconds: float) -> None:
        """Note what a process answered, or that it cannot any more; a result that is not here in time is waited for."""
        process, number = self._waiting[handle]
        rank, reply = process.place.rank, None
        try:
            reply = self._hosts.cluster.answer(handle, seconds)
            self._values[rank] = self._hosts.value_of(self._what, reply, seconds)
        except TimeoutError:
            return
        except BurnishError as error:
            weight = reply.failure.weight if reply is not None and reply.failure else Weight.TYPED
            self._failures.append((weight, rank, error))
        except Lost as lost:
            weight, failure = self._lost(process, lost)
            self._failures.append((weight, rank, _from(failure, lost)))
        if reply is not None:
            say_again(reply.records)
        del self._waiting[handle]
        if process.done <= number:
            process.done, process.free_since = number + 1, time.monotonic()

    def _lost(self, process: "Process", lost: Lost) -> tuple[Weight, BurnishError]:
        hosts, rank = self._hosts, process.place.rank
        match lost.lacking:
            case Lacking.ROOM:
                return Weight.TYPED, WorkerError(
                    f"{self._what}: the result of {hosts.named(process)} does not fit into {lost}"
                )
            case Lacking.DATA:
                missing = f"lacks data from a process that has died: {lost}"
                return Weight.DIED, WorkerDied(f"{self._what} on {hosts.named(process)} {missing}")
            case Lacking.CALL:
                return Weight.UNTYPED, WorkerError(f"{self._what} failed on {hosts.named(process)}: {lost}")
        if hosts.ended:
            return Weight.DIED, WorkerDied(f"{self._what} cannot finish: {hosts.ended}")
        self._dead[rank] = process
        why = hosts.cluster.why_gone(process, lost)
        return Weight.DIED, WorkerDied(f"{hosts.named(process)}, died while it ran {self._what}: {why}")

    def _most_telling(self) -> BurnishError:
        """The failure to raise; the processes are ended where they are of no use any more."""
        weight, rank, error = min(self._failures, key=lambda failure: failure[:2])
        why = str(error)
        if weight is Weight.DIED and rank in self._dead:
            others = sorted(set(self._dead) - {rank})
            also = f"\nso did ranks {', '.join(map(str, others))}" if others else ""
            error = _from(WorkerDied(why + also + self._dead[rank].line.last_lines(self._dead[rank].address)), error)
        if weight is Weight.BROKEN:
            why = self._broken(rank, error)
            error = _from(WorkerDied(why), error)
        left_behind = self._waiting and self._answering is not None
        if left_behind or self._dead or any(one is Weight.BROKEN for one, _, _ in self._failures):
            self._hosts.end(why)  # not where a worker only reports the death of one that it had called
        return error

    def _broken(self, rank: int, error: BurnishError) -> str:
        """A collective lost a worker of whose death nothing else is known: name those that do not answer."""
        waiting = [process for process, _ in self._waiting.values()]
        found = self._hosts.status(waiting)
        silent = [self._hosts.named(process) for process in waiting if not found[id(process)]]
        if not silent:
            return f"{self._what}: rank {rank} lost its connection to the others: {error}"
        return f"{'; '.join(silent)}: does not answer any more, and rank {rank} lost its connection: {error}"


def _from(error: E, cause: BaseException) -> E:
    error.__cause__ = cause
    return error
