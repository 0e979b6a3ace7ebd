"""A thread with an event loop of its own, which takes work from any thread.

It is started by the first work, and ended by `close()` or the end of the program: work in flight is cancelled, then
`ending` runs, and nothing is left. Where that takes too long, `close` gives it up with a DeadlineError: what blocks the
thread then blocks nothing else. A fork of the process has neither the thread nor a say over what it holds.
"""

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from burnish.errors import DeadlineError, WorkerError
from burnish.waits import waiting

CLOSE_SECONDS = 10.0  # for what was begun to end, unless its owner says otherwise; and then for the thread

T = TypeVar("T")


class LoopThread:
    """`owner` is how messages name whoever runs work here; `ending` is the last thing that runs; `name` is the
    thread's; `kind` says what is waited for here, among the waits of the process; `close_s` is the time in which what
    was begun and `ending` come to their end."""

    def __init__(
        self,
        owner: str,
        ending: Callable[[], Awaitable[None]],
        name: str,
        kind: str = "tool",
        close_s: float = CLOSE_SECONDS,
    ):
        self.owner, self.ending, self.name, self.kind, self.close_s = owner, ending, name, kind, close_s
        self._gate = threading.Lock()  # guards the start and end of the thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._process = os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin `work` on the loop."""
        if os.getpid() != self._process:
            work.close()
            raise WorkerError(f"{self.owner} belongs to the process that this one was forked from")
        with self._gate:
            if self._closed:
                work.close()
                raise WorkerError(f"{self.owner} is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name=self.name, daemon=True)
                self._thread.start()
                atexit.register(self.close)
            return asyncio.run_coroutine_threadsafe(self._tracked(work), self._loop)

    def close(self) -> None:
        """Cancel what is in flight, run `ending`, and wait for it all. Final."""
        if os.getpid() != self._process:
            return
        with self._gate:
            self._closed = True
            loop, self._loop = self._loop, None
        atexit.unregister(self.close)
        if loop is None or self._thread is None:
            return
        try:
            self.ended(asyncio.run_coroutine_threadsafe(self._end(), loop))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(CLOSE_SECONDS)
            if not self._thread.is_alive():  # else something blocks it, which ends with the process
                loop.close()

    def ended(self, ending: concurrent.futures.Future[None]) -> None:
        """Wait for work that ends others; DeadlineError where it does not come to an end itself."""
        with waiting(self.kind, "", f"{self.owner} to end what it has begun", self.close_s) as wait:
            if not concurrent.futures.wait([ending], self.close_s).done:
                wait.overdue()
        if not ending.done():
            there = f" (where it is: {wait.stacks})" if wait.stacks else ""
            raise DeadlineError(
                f"{self.owner} has not ended what it had begun within {self.close_s:g} s{there}: something blocks "
                f"thread {self.name}, or does not let itself be cancelled"
            )
        ending.result()

    async def _tracked(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await work
        finally:
            self._running.discard(task)

    async def _end(self) -> None:
        tasks = list(self._running)  # asyncio has tasks of its own on this loop, which must end by themselves
        for task in tasks:
            if not task.cancelling():  # one that its caller gave up may be ending a child, which must not be cut short
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.ending()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Until the loop is stopped. SystemExit leaves it too; but that is the failure of one task, and rises where it is
    awaited, for which the loop must go on."""
    while True:
        try:
            return loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            continue
