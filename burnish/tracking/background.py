"""`Background`: jobs in a thread, one after another, while their owner continues or waits with a deadline. The thread
waits for nothing and ends with the last job; the owner gets the failure of a job from its next call, once."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from burnish.errors import BurnishError, DeadlineError
from burnish.waits import waiting

T = TypeVar("T")


class Background(Generic[T]):
    """
    name       of the thread, a daemon: no process hangs on a slow disk, and what must be whole is written atomically
    kind       what is waited for, and `owner` who waits, among the waits of the process
    deadline   seconds to wait for room, and for the outcome
    hint       what to do about a disk that is too slow
    depth      jobs that may be queued
    """

    def __init__(
        self, name: str, kind: str, deadline: float, *, hint: str = "", owner: str = "", depth: int = 1, rest: str = ""
    ):
        self.name, self.kind, self.deadline, self.hint, self.owner = name, kind, deadline, hint, owner
        self.depth, self.rest = depth, rest
        self._jobs = _Jobs[T](self)

    def start(self, work: Callable[[], T], what: str) -> None:
        """Queue `work`; `what` names it in messages. Waits, up to the deadline, while the queue is full."""
        self._raise_failure()
        self._wait(lambda jobs: len(jobs.queue) < self.depth, f"room in the queue for {what}", what)
        self._jobs.add(work, what)

    def outcome(self, *, wait: bool) -> T | None:
        """What the last job returned, or raises what one raised; None where there is none, or without `wait` none yet.
        With `wait`, all queued jobs are waited for."""
        jobs = self._jobs
        if jobs.running and not wait:
            return None
        what = self.rest or jobs.running
        self._wait(lambda jobs: not jobs.running, what, what)
        self._raise_failure()
        result, jobs.result = jobs.result, None
        return result

    def _wait(self, holds: "Callable[[_Jobs[T]], bool]", subject: str, what: str) -> None:
        jobs = self._jobs
        with jobs.changed:
            if holds(jobs):
                return
        with waiting(self.kind, self.owner, subject, self.deadline) as wait:
            with jobs.changed:
                if jobs.changed.wait_for(lambda: holds(jobs), self.deadline):
                    return
            wait.overdue()
        self._jobs = _Jobs(self)  # what hangs is given up: nobody waits for it again
        there = f" (where it is: {wait.stacks})" if wait.stacks else ""
        raise DeadlineError(
            f"{what} has not ended within {self.deadline:g} s{there}: the disk is too slow or hangs. {self.hint}"
        )

    def _raise_failure(self) -> None:
        failure, self._jobs.failure = self._jobs.failure, None
        if failure is not None:
            raise failure


class _Jobs(Generic[T]):
    """What one thread works on; `running` names its job, "" where there is none."""

    def __init__(self, owner: Background[T]):
        self.owner = owner
        self.changed = threading.Condition()
        self.queue: deque[tuple[Callable[[], T], str]] = deque()
        self.running = ""
        self.result: T | None = None
        self.failure: BaseException | None = None
        self.thread: threading.Thread | None = None

    def add(self, work: Callable[[], T], what: str) -> None:
        with self.changed:
            self.queue.append((work, what))
            if not self.running:
                self.running = what
                self.thread = threading.Thread(target=self._work, name=self.owner.name, daemon=True)
                self.thread.start()

    def _work(self) -> None:
        while True:
            with self.changed:
                work, self.running = self.queue.popleft() if self.queue else (None, "")
                self.changed.notify_all()
            if work is None:
                return
            try:  # the owner's wait ends with an error at the deadline
                with waiting(self.owner.kind, "", self.running, self.owner.deadline, report_only=True):
                    self.result = work()
            except BaseException as error:  # noqa: BLE001 (handed to the owner, whatever it is)
                if not isinstance(error, BurnishError):
                    error.add_note(f"while {self.running}")
                self.failure = self.failure or error
