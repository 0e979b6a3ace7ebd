"""Work that has been handed to the device, and how its results come back.

On a GPU work is queued by the thread that asks for it, and runs by itself; a `Flight` waits for the small copy at its
end. On a CPU a `Lane`, which is a thread, computes one piece after the other. Either way `wait` blocks its caller no
longer than the deadline: a step that does not end is reported with the stack of the thread that is stuck.
"""

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.errors import RolloutError

POLL_S = 2e-5
CLOSE_DEADLINE_S = 60.0  # for the step that runs when a lane is closed


class Lane:
    """Computes what `submit` hands over, in order, in a thread that ends with `close`."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rollout-lane", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], Any]) -> Future:
        future: Future = Future()
        self._work.put((function, future))
        return future

    def close(self) -> None:
        self._work.put(None)
        self._thread.join(CLOSE_DEADLINE_S)

    def abandon(self) -> None:
        """Leave a thread that is stuck; it ends if its step ever does."""
        self._work.put(None)

    def stack(self) -> str:
        """Where the thread is."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else "the thread has ended"

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            function, future = item
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 (rises where the result is waited for)
                future.set_exception(error)


class LaneFlight:
    def __init__(self, lane: Lane, work: Callable[[], Tensor]):
        self._lane = lane
        self._future = lane.submit(lambda: work().clone().numpy())

    def wait(self, deadline_s: float, what: str) -> np.ndarray:
        """`Rows.out` after the step, (3, C)."""
        try:
            out: np.ndarray = self._future.result(deadline_s)
        except FutureTimeout:
            raise _stuck(what, deadline_s, self._lane.stack()) from None
        return out


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
                raise _stuck(what, deadline_s, "the kernels of the step have not ended")
            time.sleep(POLL_S)
        return self._copy.numpy()


Flight = LaneFlight | DeviceFlight


class Stuck(RolloutError):
    """A step did not end; the engine cannot go on."""


def _stuck(what: str, deadline_s: float, where: str) -> Stuck:
    return Stuck(f"the rollout engine is stuck: {what} did not end within {deadline_s:g} s.\n{where}")
