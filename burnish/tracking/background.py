"""A thread that writes files while training goes on.

It consumes a bounded queue of jobs and waits only for that queue; `close` unblocks it. The owner waits for it with a
deadline, and gets the failure of a job from its next call.
"""

import queue
import threading
from collections.abc import Callable

from burnish.errors import CheckpointError, DeadlineError
from burnish.waits import waiting


class BackgroundWriter:
    """One thread, a bounded queue of jobs. A failed job is raised by the next call of the owner.

    It is a daemon thread: a process that dies of an error does not hang on a slow disk, and files are written
    atomically, so none is left half-written.
    """

    def __init__(self, depth: int = 4, deadline: float = 600.0) -> None:
        self._jobs: queue.Queue[tuple[Callable[[], None], str] | None] = queue.Queue(maxsize=depth)
        self._deadline = deadline
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._pending = 0
        self._hangs = False  # it was waited for in vain: nobody waits as long again
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None], what: str) -> None:
        """Queue a job. Blocks, up to the deadline, while the queue is full."""
        self._raise_failure()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="burnish-run-folder", daemon=True)
            self._thread.start()
        with self._lock:
            self._pending += 1
        try:
            with waiting("disk", "", f"room in the queue for {what}", self._deadline) as wait:
                try:
                    self._jobs.put((job, what), timeout=self._deadline)
                except queue.Full:
                    wait.overdue()
                    raise
        except queue.Full:
            with self._lock:
                self._pending -= 1
            raise self._too_slow(what) from None

    def flush(self) -> None:
        with waiting("disk", "", "the queued samples to be written", self._deadline) as wait, self._idle:
            if not self._idle.wait_for(lambda: self._pending == 0, timeout=0 if self._hangs else self._deadline):
                self._hangs = True
                wait.overdue()
                raise self._too_slow("the queued samples")
        self._raise_failure()

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                self.flush()
            finally:
                if self._pending == 0:  # otherwise the disk hangs, and so would we
                    self._jobs.put(None)
                    thread.join(timeout=self._deadline)
        self._raise_failure()

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, what = item
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - handed to the owner, whatever it is
                with self._lock:
                    self._failure = self._failure or error
                    if not isinstance(error, CheckpointError):
                        error.add_note(f"while writing {what}")
            finally:
                with self._idle:
                    self._pending -= 1
                    self._idle.notify_all()

    def _raise_failure(self) -> None:
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _too_slow(self, what: str) -> DeadlineError:
        return DeadlineError(
            f"the run-folder writer has not written {what} within {self._deadline:g} s: the disk is too slow or hangs. "
            "Name another folder with trainer.default_local_dir, or dump less often with trainer.rollout_dump_freq"
        )
