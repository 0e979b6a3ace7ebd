"""A thread with an event loop of its own, which takes work from any thread; used by pool.py.

It is started by the first work, and ended by `close()` or the end of the program: work in flight is cancelled, then
`ending` runs, and nothing is left. A fork of the process has neither the thread nor a say over what it holds.
"""

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from burnish.errors import WorkerError

CLOSE_SECONDS = 10.0

T = TypeVar("T")


class LoopThread:
    """`owner` is how messages name whoever runs work here; `ending` is the last thing that runs."""

    def __init__(self, owner: str, ending: Callable[[], Awaitable[None]]):
        self.owner, self.ending = owner, ending
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
                self._thread = threading.Thread(target=self._loop.run_forever, name="burnish-rewards", daemon=True)
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
        asyncio.run_coroutine_threadsafe(self._end(), loop).result(CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(CLOSE_SECONDS)
        loop.close()

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
