"""The register of waits: who in this process waits for what, since when, and until when.

    with waiting("tool", "uid 3, sample 1", "tool search: execute", 60.0) as wait:
        await asyncio.wait({task}, timeout=60.0)

Every wait for something that may never come stands in here while it lasts: around blocking calls and in coroutines
alike. Waits end themselves at their deadline, with a typed error; the register is what makes them visible, and what the
watchdog (`tracking/watchdog.py`) looks at. To enter and to leave costs a few microseconds, so thousands may wait at
once. Its times are those of `ran`, a clock that leaves out when the whole process stood still.

A wait that is past its deadline is told of, once: the watchdog then writes down where all threads are. That happens
when the wait says so itself (`overdue`), when it ends late, or when the watchdog finds it.

One that does not end itself can be ended by the watchdog (`end`), with a DeadlineError:

- a coroutine by cancelling its task, which its event loop does;
- a thread, or whatever blocks a loop that does not hear, by raising the error there: in the main thread a signal wakes
  it, also in a blocking call; in another the error arrives when that runs Python code again, or never.

What a thread does is told by its youngest wait. If a plain function waits there, nothing else goes on in the thread,
and no other wait of it is to be ended: that an engine computes for long is no fault of tools that answered meanwhile.
"""

import asyncio
import ctypes
import inspect
import logging
import signal
import sys
import threading
import time
from asyncio.events import _get_running_loop
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType, TracebackType
from typing import Any

from burnish.errors import DeadlineError

CAN_AWAIT = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
PROMPT_S = 2.0  # an event loop that takes longer to hear of something was blocked
PAUSE_S = 5.0  # without a look at the clock: the process stood still, for whoever looks regularly does so every 2 s

log = logging.getLogger(__name__)

#: Of the watchdog: told of a wait that is past its deadline, at once, with False; gives the file with the stacks. With
#: True it returns when that is written.
teller: "Callable[[Wait, bool], str] | None" = None
#: What workers in other processes are doing, in words, for a dump; of the executor that has any.
witnesses: list[Callable[[], str]] = []

_clock = threading.RLock()  # for the two below; again in the same thread, should a signal come while it looks
_looked_at = float("inf")  # by whoever did last; nobody has
_stood_still = 0.0  # seconds so far
_waits: "dict[int, Wait]" = {}
_telling = threading.RLock()  # so that the watchdog and the wait itself do not both tell of it
_ending = threading.Lock()  # so that nothing is raised in a thread whose wait has just ended
_owner: ContextVar[str] = ContextVar("owner", default="")
_signal: int | None = getattr(signal, "SIGRTMIN", None)  # wakes the main thread; no program uses this one by itself
_can_signal = False
_main_struck: "Wait | None" = None


def ran() -> float:
    """The moment, as of `time.monotonic`, less all the time in which this process stood still: Ctrl-Z, a paused
    container. What is waited for may not have had that time.

    Nobody can look while the process stands still. So a gap of more than `PAUSE_S` since anybody's last look was a
    pause, or nobody cared. Whoever ends something by this clock looks at it every second or two until then: the
    watchdog, the looks for signs of life, the engine's watch over its steps. A sleep until a deadline does not do.
    """
    global _looked_at, _stood_still
    with _clock:
        now = time.monotonic()
        if now - _looked_at > PAUSE_S:
            _stood_still += now - _looked_at
        _looked_at = now
        return now - _stood_still


def owned_by(owner: str) -> None:
    """What waits in this task from now on, or in tasks that it starts, is shown as this owner's."""
    _owner.set(owner)


class Wait:
    """One wait; a context manager. `seconds` None: the configuration sets no limit."""

    __slots__ = (
        "_asked_at", "_cancels", "_has_arrived", "_is_hit", "deadline", "is_only_told", "kind", "late_since", "owner",
        "seconds", "since", "stacks", "struck_at", "subject", "task", "text", "thread", "tries",
    )  # fmt: skip

    def __init__(self, kind: str, owner: str, subject: str, seconds: float | None, is_only_told: bool = False):
        self.kind, self.owner, self.subject, self.seconds = kind, owner, subject, seconds
        self.is_only_told = is_only_told
        self.since = 0.0
        self.deadline: float | None = None  # as a moment of `ran`; may be moved while it waits
        self.thread = 0
        self.task: asyncio.Task[Any] | None = None  # None: a plain function waits, which the thread can do alone
        self.late_since: float | None = None
        self.stacks = ""  # the file with the stacks, once it is late
        self.tries = 0  # to end it
        self.struck_at: float | None = None  # when the last one was
        self.text = ""  # of the error that ends it
        self._asked_at: float | None = None  # its loop, which has not heard yet
        self._cancels = 0
        self._is_hit = self._has_arrived = False  # by an error from another thread

    def __enter__(self) -> "Wait":
        self.since = now = ran()
        self.deadline = None if self.seconds is None else now + self.seconds
        self.thread = threading.get_ident()
        if sys._getframe(1).f_code.co_flags & CAN_AWAIT:
            loop = _get_running_loop()
            self.task = None if loop is None else asyncio.current_task(loop)
        if not self.owner:
            self.owner = _owner.get() or threading.current_thread().name
        _waits[id(self)] = self  # last: nothing can come between this and the block
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.deadline is not None and self.late_since is None and ran() >= self.deadline:
                self.tell()
            if self.late_since is None:  # and so nobody ends it
                return
            with _ending:
                self.drop()
        finally:
            self.drop()
        if self._is_hit and not self._has_arrived:
            _raise_in(self.thread, None)
        others = 0
        for _ in range(self._cancels):
            others = self.task.uncancel() if self.task is not None else 0
        if self._cancels and not others and isinstance(error, asyncio.CancelledError):
            raise DeadlineError(self.text) from error

    def drop(self) -> None:
        """It is over, whatever it was."""
        _waits.pop(id(self), None)

    def overdue(self, *, until_written: bool = False) -> str:
        """It is past its deadline and ends itself now: have the stacks written. The file, or "" without one.

        until_written  return only when workers have told where they are too: they are about to be ended
        """
        self.is_only_told = True
        return self.tell(until_written)

    def tell(self, until_written: bool = False) -> str:
        """It is past its deadline, whoever is to end it. Never fails."""
        with _telling:
            if self.late_since is None:
                self.late_since = ran()
                self._tell(False)
        if until_written:
            self._tell(True)
        return self.stacks

    def _tell(self, until_written: bool) -> None:
        if teller is not None:
            try:
                self.stacks = teller(self, until_written)
            except Exception:
                log.exception("%s: %s is late, and that could not be told", self.kind, self)

    @property
    def age(self) -> float:
        return ran() - self.since

    @property
    def limit(self) -> str:
        """In words."""
        return limit_in_words(self.seconds)

    def __str__(self) -> str:
        return f"{self.subject} ({self.owner})"

    # What the watchdog does with one that does not end.

    @property
    def is_deaf(self) -> bool:
        """Its event loop has not heard that it is to end: something blocks the loop's thread."""
        return self._asked_at is not None

    @property
    def _hears(self) -> bool:
        """It is a coroutine whose event loop goes on, maybe again."""
        return self.task is not None and not self.is_deaf

    def end(self) -> None:
        """Try to have it end with a DeadlineError."""
        there = f". Where all threads were is in {self.stacks}" if self.stacks else ""
        self.text = f"{self} has not ended after {self.age:.0f} s ({self.limit}){there}"
        self.struck_at = now = ran()
        self.tries += 1
        if self.task is None:
            self._strike()
        elif self.is_deaf:
            name = next((one.name for one in threading.enumerate() if one.ident == self.thread), self.thread)
            self.text = f"thread {name} is blocked here, and what waits in it cannot go on: {self.text}"
            self._strike()
        else:
            self._asked_at = now
            self.task.get_loop().call_soon_threadsafe(self._cancel, now)

    def _strike(self) -> None:
        """Raise the error in its thread."""
        global _main_struck
        with _ending:
            if not is_waiting(self) or self._hears:
                return
            if _can_signal and _signal is not None and self.thread == threading.main_thread().ident:
                _main_struck = self
                signal.pthread_kill(self.thread, _signal)
            else:
                self._is_hit, self._has_arrived = True, False
                _raise_in(self.thread, type("DeadlineError", (_Struck,), {"wait": self}))

    def _cancel(self, asked_at: float) -> None:
        """In its event loop."""
        self._asked_at, now = None, ran()
        if self._has_arrived:  # and the loop goes on: it is over, or ends like any other
            self.drop()
        elif now - asked_at > PROMPT_S or self.struck_at != asked_at:
            # The loop was blocked: what waits here may go on by itself now.
            self.late_since, self.struck_at, self.tries = now, None, 0
        elif is_waiting(self) and self.task is not None:
            self._cancels += 1
            self.task.cancel()


class _Struck(DeadlineError):
    """As it is raised in another thread, which can be given a class only."""

    wait: Wait

    def __init__(self) -> None:
        super().__init__(self.wait.text)
        self.wait._has_arrived = True
        if self.wait.task is None:
            self.wait.drop()  # it may have arrived just where the wait ends, which then does not


def waiting(kind: str, owner: str, subject: str, seconds: float | None, *, is_only_told: bool = False) -> Wait:
    """Register a wait: `with waiting(…):`.

    kind          what is waited for: engine, tool, reward, worker, checkpoint, retriever; disk: other files of the run;
                  logger
    owner         who waits; "": whoever `owned_by` named, or else the name of the thread
    seconds       until its deadline; None only where the configuration says that there is no limit
    is_only_told  past its deadline it is shown and its stacks are written, but the watchdog does not end it: somebody
                  else waits for it with a deadline, or it may well take longer
    """
    return Wait(kind, owner, subject, seconds, is_only_told)


def longest(count: int | None = None) -> list[Wait]:
    """The waits of this process, the oldest first."""
    return sorted(_waits.values(), key=lambda wait: wait.since)[:count]


def counts() -> dict[str, int]:
    """How many there are of each kind."""
    return dict(Counter(wait.kind for wait in list(_waits.values())))


def is_waiting(wait: Wait) -> bool:
    return id(wait) in _waits


def at_work(thread: int) -> Wait | None:
    """The wait of a plain function that a thread is in; None where it is in none, or an event loop runs inside it."""
    youngest = max((wait for wait in longest() if wait.thread == thread), key=lambda wait: wait.since, default=None)
    return youngest if youngest is not None and youngest.task is None else None


def limit_in_words(seconds: float | None) -> str:
    return "no limit" if seconds is None else f"limit {max(0.0, round(seconds, 1)):g} s"


def let_main_be_woken() -> None:
    """Let the watchdog end waits of the main thread in the middle of a blocking call. Called in that thread; in another
    it does nothing."""
    global _can_signal
    if threading.current_thread() is threading.main_thread() and _signal is not None and not _can_signal:
        signal.signal(_signal, _on_signal)
        _can_signal = True


def _on_signal(number: int, frame: FrameType | None) -> None:
    """In the main thread, wherever it is by now."""
    global _main_struck
    wait, _main_struck = _main_struck, None
    if wait is None or not is_waiting(wait) or wait._hears:
        return
    if at_work(wait.thread) is not (wait if wait.task is None else None):
        return
    while frame is not None:
        if frame.f_code is Wait.__exit__.__code__:
            return  # a wait is just ending
        frame = frame.f_back
    raise DeadlineError(wait.text)


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise it in a thread as soon as that runs Python code; None: take back one that has not arrived."""
    what = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), what)
