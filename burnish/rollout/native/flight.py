"""Work that has been handed to the device, and how its results come back.

On a GPU work is queued and runs asynchronously; a `DeviceFlight` polls for the small copy at its end, no longer than
the deadline. On a CPU the thread that hands it out has computed it by then: each step there is a registered wait
(`burnish/waits.py`), and the watchdog ends the process where it does not end. Without running ahead that is the thread
that trains, for two threads that compute in turn would each keep the cores busy with waiting for the other.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from burnish.errors import EngineLost
from burnish.rollout.in_process import OWNER
from burnish.waits import waiting

POLL_S = 2e-5


class Stuck(EngineLost):
    """A step did not end; the engine cannot continue."""


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
                        raise Stuck(
                            f"the rollout engine is stuck: the kernels of {what} have not ended within {deadline_s:g} s"
                        )
                    time.sleep(POLL_S)
        return self._copy.numpy()


Flight = HostFlight | DeviceFlight
