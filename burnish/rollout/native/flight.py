"""Work that has been handed to the device, how its results come back, and what happens when they do not.

On a GPU work is queued and runs by itself; a `DeviceFlight` waits for the small copy at its end, no longer than the
deadline. On a CPU it has been computed when it is handed out, by the thread that trains: two threads that compute in
turn would each keep the cores busy with waiting for the other. There a `Watch` looks at the clock.
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

from burnish.errors import RolloutError

POLL_S = 2e-5

log = logging.getLogger(__name__)


class Stuck(RolloutError):
    """A step did not end; the engine cannot go on."""


class HostFlight:
    """Results that are there already."""

    def __init__(self, work: Callable[[], Tensor]):
        self._out = work().clone().numpy()

    def wait(self, deadline_s: float, what: str) -> np.ndarray:
        """`Rows.out` after the step, (3, C)."""
        return self._out


class DeviceFlight:
    def __init__(self, work: Callable[[], Tensor]):
        out = work()
        self._copy = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
        self._copy.copy_(out, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def wait(self, deadline_s: float, what: str) -> np.ndarray:
        """`Rows.out` after the step, (3, C)."""
        start = time.monotonic()
        while not self._event.query():
            if time.monotonic() - start > deadline_s:
                raise Stuck(_report(what, deadline_s, "its kernels have not ended"))
            time.sleep(POLL_S)
        return self._copy.numpy()


Flight = HostFlight | DeviceFlight


class Watch:
    """Looks from a thread of its own whether what the engine computes on this host ends in time.

    If not, it writes the stack to the log, and raises `Stuck` in the thread that computes, as soon as that runs Python
    code again. (A call into a library that never returns cannot be ended from outside; it is reported.) The thread
    lives from `open` to `close` and wakes a few times within the deadline.
    """

    def __init__(self, deadline_s: float):
        self.deadline_s = deadline_s
        self.report = ""  # of the step that did not end
        self._lock = threading.Lock()  # so that nothing is raised in a thread whose step has just ended
        self._step: tuple[float, str, int] | None = None  # when it is due, what it is, and whose
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
        self._step = time.monotonic() + self.deadline_s, what, threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                self._step = None

    def _look(self, closed: threading.Event) -> None:
        while not closed.wait(min(self.deadline_s / 4, 5.0)):
            with self._lock:
                if self._step is not None and time.monotonic() > self._step[0]:
                    self._tell(*self._step)
                    self._step = None

    def _tell(self, due: float, what: str, thread: int) -> None:
        frame = sys._current_frames().get(thread)
        self.report = _report(what, self.deadline_s, "".join(traceback.format_stack(frame)) if frame else "")
        log.error("%s", self.report)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Stuck))


def _report(what: str, deadline_s: float, where: str) -> str:
    return f"the rollout engine is stuck: {what} did not end within {deadline_s:g} s.\n{where}"
