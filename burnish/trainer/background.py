"""`Background`: one job at a time in a thread of its own, while its owner goes on or waits no longer than it wants to.

The thread consumes the job alone and waits for nothing; it ends with the job. The owner asks how it ended (`outcome`)
or waits for it, up to the deadline, and gets the job's failure there: as it was raised, once, never silently.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from burnish.errors import DeadlineError
from burnish.waits import waiting

T = TypeVar("T")


class Background(Generic[T]):
    """A daemon thread: a process that ends does not hang on a slow disk. What must be whole is written atomically."""

    def __init__(self, deadline: float):
        self.deadline = deadline
        self._job: _Job[T] | None = None

    def start(self, work: Callable[[], T], what: str) -> None:
        """Begin `work`; one before it must have been waited for. `what` names it where it takes too long."""
        assert self._job is None, f"{what} is to begin before the outcome of {self._job and self._job.what} was asked"
        self._job = _Job(work, what, self.deadline)
        self._job.thread.start()

    def outcome(self, *, wait: bool) -> T | None:
        """What the job returned, or raises what it raised; None where there is none, or without `wait` none yet."""
        job = self._job
        if job is None or (not wait and not job.ended.is_set()):
            return None
        with waiting("checkpoint", "the trainer", job.what, self.deadline) as waited:
            if not job.ended.wait(self.deadline):  # after Ctrl-C in `join` Python takes a thread for ended that is not
                waited.overdue()
        self._job = None
        if not job.ended.is_set():
            there = f" (where it is: {waited.stacks})" if waited.stacks else ""
            raise DeadlineError(
                f"{job.what} has not ended within {self.deadline:g} s{there}: the disk is too slow or hangs. The "
                "previous checkpoint is whole, and the same command goes on from the newest. Raise "
                "trainer.checkpoint_timeout, or name another folder with trainer.default_local_dir"
            )
        if job.error is not None:
            raise job.error
        return job.result


class _Job(Generic[T]):
    def __init__(self, work: Callable[[], T], what: str, deadline: float):
        self.work, self.what, self.deadline = work, what, deadline
        self.result: T | None = None
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, name="burnish-checkpoint", daemon=True)

    def _run(self) -> None:
        try:
            with waiting("checkpoint", "", self.what, self.deadline, report_only=True):  # `outcome` ends with an error
                self.result = self.work()
        except BaseException as error:  # noqa: BLE001 - handed to the owner, whatever it is
            self.error = error
        finally:
            self.ended.set()
