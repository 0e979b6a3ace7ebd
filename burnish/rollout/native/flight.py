"""Work that has been handed to the device, how its results come back, and what happens when they do not.

On a GPU work is queued and runs by itself; a `DeviceFlight` waits for the small copy at its end, no longer than the
deadline. On a CPU it has been computed when it is handed out, by the thread that hands it out; without running
ahead that is the one that trains, for two threads that compute in turn would each keep the cores busy with waiting for
the other. There a `Watch` looks at the clock.
"""

import ctypes
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from burnish.errors import EngineLost
from burnish.waits import Wait, ran, waiting

POLL_S = 2e-5
LOOK_S = 2.0  # between two looks of `Watch`, at most
OWNER = "the rollout engine"

log = logging.getLogger(__name__)


class Stuck(EngineLost):
    """A step did not end; the engine cannot go on."""


class HostFlight:
    """Results that are there already."""

    def __init__(self, work: Callable[[], Tensor]):
        self._out = work().clone().numpy()

    def wait(self, deadline_s: float, what: str) -> np.ndarray:
        """`DecodeRows.out` after the step, (3, C)."""
        return self._out


class DeviceFlight:
    def __init__(self, work: Callable[[], Tensor]):
        out = work()
        self._copy = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
        self._copy.copy_(out, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def wait(self, deadline_s: float, what: str) -> np.ndarray:
        """`DecodeRows.out` after the step, (3, C)."""
        if not self._event.query():
            with waiting("engine", OWNER, what, deadline_s) as wait:
                while not self._event.query():
                    if wait.age > deadline_s:
                        wait.overdue()
                        raise Stuck(_report(what, deadline_s, "its kernels have not ended"))
                    time.sleep(POLL_S)
        return self._copy.numpy()


Flight = HostFlight | DeviceFlight


class Watch:
    """Looks from a thread of its own whether what the engine computes on this host ends in time.

    If not, it writes the stack to the log, and raises `Stuck` in the thread that computes, as soon as that runs Python
    code again. (A call into a library that never returns cannot be ended from outside; it is reported.) The thread
    lives from `open` to `close` and wakes a few times within the deadline.

    Each step is a wait (`burnish/waits.py`). In the main thread the watchdog ends one that this cannot end; in a thread
    of its own the engine's heartbeat does (`engine_loop.py`), which leaves the thread behind.
    """

    def __init__(self, deadline_s: float):
        self.deadline_s = deadline_s
        self.report = ""  # of the step that did not end
        self._lock = threading.Lock()  # so that nothing is raised in a thread whose step has just ended
        self._step: Wait | None = None
        self._closed = threading.Event()

    def open(self) -> None:
        self._closed.set()  # a driver that was left behind has not done it
        self._closed = threading.Event()
        threading.Thread(target=self._look, args=(self._closed,), name="rollout-watch", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    @contextmanager
    def over(self, what: str) -> Iterator[None]:
        """Watch what is computed inside."""
        is_main = threading.current_thread() is threading.main_thread()
        step = waiting("engine", OWNER, what, self.deadline_s, is_only_told=not is_main)
        try:
            with step:
                self._step = step
                try:
                    yield
                finally:
                    with self._lock:
                        self._step = None
        finally:
            step.drop()  # `Stuck` may arrive just where it ends, which then does not

    def _look(self, closed: threading.Event) -> None:
        while not closed.wait(min(self.deadline_s / 4, LOOK_S)):
            with self._lock:
                step = self._step
                if step is not None and step.deadline is not None and ran() > step.deadline:
                    self._tell(step)
                    self._step = None

    def _tell(self, step: Wait) -> None:
        step.tell()
        frame = sys._current_frames().get(step.thread)
        self.report = _report(step.subject, self.deadline_s, "".join(traceback.format_stack(frame)) if frame else "")
        log.error("%s", self.report)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(step.thread), ctypes.py_object(Stuck))


def _report(what: str, deadline_s: float, where: str) -> str:
    return f"the rollout engine is stuck: {what} did not end within {deadline_s:g} s.\n{where}"
