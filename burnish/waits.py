"""The register of waits: who in this process waits for what, since when, and until when.

    with waiting("tool", "uid 3, sample 1", "tool search: execute", 60.0) as wait:
        await asyncio.wait({task}, timeout=60.0)

Every wait for something that may never come is registered while it lasts, and ends itself at its deadline with a typed
error. The watchdog (`tracking/watchdog.py`) shows it, writes the stacks of all threads once it is late, and ends the
process where it does not end: nothing is ever raised into a running thread. It costs a few microseconds.
"""

import asyncio
import inspect
import logging
import os
import sys
import threading
import time
from asyncio.events import _get_running_loop
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, NamedTuple

CAN_AWAIT = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
EXIT_CODE = 3  # of a process that was ended because it hangs
VARIABLE, REPORT_ONLY = "BURNISH_WATCHDOG", "report"  # in the environment: no process is ended
PAUSE_S = 5.0  # without a look at the clock: the process was stopped, for the watchdog looks every second

log = logging.getLogger(__name__)

#: Set by the watchdog. Called with a wait that is late, and False: returns the file that will hold the stacks, at once.
#: With True it returns when the file is written.
reporter: "Callable[[Wait, bool], str] | None" = None
#: Each returns what workers in other processes are doing, in words, for a dump; added by the executor that has workers.
worker_reports: list[Callable[[], str]] = []
#: Each is called with every wait that has ended.
observers: "list[Callable[[Wait], None]]" = []

_clock = threading.RLock()  # for the two below
_looked_at = float("inf")  # the last call of `ran`; none yet
_paused_s = 0.0  # in all
_waits: "dict[int, Wait]" = {}
_reporting = threading.RLock()  # so that a wait is reported once
_program = 0  # calls of a program that is no command: see `never_ends`
_owner: ContextVar[str] = ContextVar("owner", default="")


@contextmanager
def never_ends() -> Iterator[None]:
    """Inside this block, what hangs is reported and left alone: the process belongs to a program that called burnish,
    such as a notebook."""
    global _program
    _program += 1
    try:
        yield
    finally:
        _program -= 1


def may_end() -> bool:
    """Whether a process that hangs is ended."""
    return not _program and os.environ.get(VARIABLE) != REPORT_ONLY


def ran() -> float:
    """`time.monotonic()` less all pauses of this process (Ctrl-Z, a paused container): what is waited for may not have
    had that time. A gap of more than `PAUSE_S` between two calls counts as a pause: the watchdog calls it every second,
    and whoever ends something by this clock must poll it until then."""
    global _looked_at, _paused_s
    with _clock:
        now = time.monotonic()
        if now - _looked_at > PAUSE_S:
            _paused_s += now - _looked_at
        _looked_at = now
        return now - _paused_s


def owned_by(owner: str) -> None:
    """From now on, waits of this task and of tasks that it starts are shown with this owner."""
    _owner.set(owner)


class BatchProgress(NamedTuple):
    """How far a batch of trajectories is."""

    doing: str  # generating, or validating
    done: int
    total: int
    tokens_per_s: float
    left_s: float | None  # about; None: nothing is known yet
    seconds: float  # since it began


class Wait:
    """A wait, registered inside `with waiting(…):`.

    kind         what is waited for: engine, tool, reward, worker, checkpoint, retriever; disk: other files of the run;
                 logger; import: a file of the user
    owner        who waits; "": as set by `owned_by`, or else the name of the thread
    seconds      until its deadline; None only where the configuration says that there is no limit
    progress     of a wait for a batch of trajectories: how far it is; may be called in any thread
    report_only  past its deadline it is reported, but the watchdog does not end the process for it: somebody else waits
                 for the same with a deadline, or it may well take longer
    """

    __slots__ = (
        "deadline", "kind", "late_at", "owner", "progress", "report_only", "seconds", "since", "stacks", "subject",
        "task", "thread",
    )  # fmt: skip

    def __init__(self, kind: str, owner: str, subject: str, seconds: float | None, *, report_only: bool = False):
        self.kind, self.owner, self.subject, self.seconds = kind, owner, subject, seconds
        self.report_only = report_only
        self.progress: Callable[[], BatchProgress] | None = None
        self.since = 0.0
        self.deadline: float | None = None  # as a time of `ran`; may be moved while it waits
        self.thread = 0
        self.task: asyncio.Task[Any] | None = None  # None: a plain function waits, and blocks its thread
        self.late_at: float | None = None  # when it was reported; the watchdog counts its grace time from here
        self.stacks = ""  # the file with the stacks, once it is late

    def __enter__(self) -> "Wait":
        self.since = now = ran()
        self.deadline = None if self.seconds is None else now + self.seconds
        self.thread = threading.get_ident()
        if sys._getframe(1).f_code.co_flags & CAN_AWAIT:
            loop = _get_running_loop()
            self.task = None if loop is None else asyncio.current_task(loop)
        if not self.owner:
            self.owner = _owner.get() or threading.current_thread().name
        _waits[id(self)] = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.deadline is not None and self.late_at is None and ran() >= self.deadline:
            self.report()
        _waits.pop(id(self), None)
        for observer in observers:
            observer(self)
        if self.kind != "disk" and log.isEnabledFor(logging.DEBUG):  # of those, writing this very line may be one
            failed, its = ("", "") if error is None else (type(error).__name__, error)
            log.debug("%s: %s: %.3f s %s %s", self.kind, self, self.age, failed, its)

    def overdue(self, *, until_written: bool = False) -> str:
        """It is past its deadline and ends itself now: have the stacks written. Returns the file, or "" without one;
        with `until_written` only when it is complete, with what workers report: they are about to be ended."""
        self.report_only = True
        return self.report(until_written)

    def report(self, until_written: bool = False) -> str:
        """It is past its deadline. Reported once, whoever notices first. Never fails."""
        try:
            with _reporting:
                if self.late_at is None:
                    self.late_at = ran()
                    self.stacks = reporter(self, False) if reporter is not None else ""
            if until_written and reporter is not None:
                reporter(self, True)
        except Exception:
            log.exception("%s: %s is late, and that could not be reported", self.kind, self)
        return self.stacks

    @property
    def age(self) -> float:
        return ran() - self.since

    def __str__(self) -> str:
        return f"{self.subject} ({self.owner})"


waiting = Wait


def longest(count: int | None = None) -> list[Wait]:
    """The waits of this process, the oldest first."""
    return sorted(_waits.values(), key=lambda wait: wait.since)[:count]


def batches() -> list[BatchProgress]:
    """How far the batches of trajectories of this process are, the oldest first."""
    return [wait.progress() for wait in longest() if wait.progress is not None]


def counts() -> dict[str, int]:
    """How many there are of each kind."""
    return dict(Counter(wait.kind for wait in list(_waits.values())))


def limit_in_words(seconds: float | None) -> str:
    """Of a wait: "limit 60 s" or "no limit"."""
    return "no limit" if seconds is None else f"limit {max(0.0, round(seconds, 1)):g} s"
