"""An event loop that takes work from any thread, and outlives what it runs: the one such class of the package.

The loop has its own thread, started by the first work. With `threaded=False` there is none: the work runs in the thread
that waits for its result, one at a time. `close()` or the end of the program ends it: work in flight is cancelled, then
`ending` runs. Where that takes too long, `close` raises a DeadlineError and leaves the thread behind. What the work has
left behind, tasks that do not let themselves be cancelled and threads of `asyncio.to_thread`, is given up after some
seconds, with a warning; child processes are killed. A fork of the process has neither the thread nor a say over what it
holds.
"""

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
import time
import weakref
from asyncio.events import _get_running_loop
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from burnish.errors import DeadlineError, WorkerError
from burnish.waits import waiting

CLOSE_SECONDS = 10.0  # for what was begun to end, unless its owner says otherwise; and then for the thread
REST_SECONDS = 5.0  # for what the work has left behind

log = logging.getLogger(__name__)

_given_up: list[asyncio.Future[Any]] = []  # kept: to destroy a coroutine is to run it, and it may loop for ever

T = TypeVar("T")


class LoopThread:
    def __init__(
        self,
        owner: str,  # how messages name whoever runs work here
        ending: Callable[[], Awaitable[None]] | None = None,  # the last thing that runs
        name: str = "",  # of the thread
        kind: str = "tool",  # what is waited for here, among the waits of the process
        close_s: float = CLOSE_SECONDS,  # the time in which work in flight and `ending` must end
        threaded: bool = True,
    ):
        self.owner, self.ending, self.name, self.kind, self.close_s = owner, ending, name, kind, close_s
        self.threaded = threaded
        self._gate = threading.Lock()  # guards the start and end of the thread
        self._runner = asyncio.Runner(loop_factory=self._new_loop)  # without a thread
        self._children = weakref.WeakSet[asyncio.SubprocessTransport]()
        self._workers = set[threading.Thread]()  # of asyncio.to_thread
        self._pool = concurrent.futures.ThreadPoolExecutor(
            thread_name_prefix=f"of {owner}", initializer=lambda: self._workers.add(threading.current_thread())
        )
        self._unstarted: dict[concurrent.futures.Future[Any], Coroutine[Any, Any, Any]] = {}  # without a thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._process = os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin `work` on the loop; without a thread, it starts when its `result` is waited for."""
        if os.getpid() != self._process:
            work.close()
            raise WorkerError(f"{self.owner} belongs to the process that this one was forked from")
        with self._gate:
            if self._closed:
                work.close()
                raise WorkerError(f"{self.owner} is closed")
            if not self.threaded:
                begun: concurrent.futures.Future[T] = concurrent.futures.Future()
                self._unstarted[begun] = work
                return begun
            if self._loop is None:
                self._loop = self._new_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name=self.name, daemon=True)
                self._thread.start()
                atexit.register(self.close)
            return asyncio.run_coroutine_threadsafe(self._tracked(work), self._loop)

    def result(self, begun: concurrent.futures.Future[T]) -> T:
        """What begun work returns, or raises. Works inside another running event loop too, which it blocks."""
        if not self.threaded:
            work: Coroutine[Any, Any, T] = self._tracked(self._unstarted.pop(begun))
            if _get_running_loop() is None:
                return self._runner.run(work)
            return _undisturbed(self._runner.run, work, stop=self._cancel)
        return begun.result()

    def _cancel(self) -> None:
        """Without a thread: cancel what runs, from another one."""
        loop = self._runner.get_loop()

        def cancel() -> None:
            for task in list(self._running) or asyncio.all_tasks(loop):  # none runs yet: what is about to
                task.cancel()

        loop.call_soon_threadsafe(cancel)

    def close(self) -> None:
        """Cancel what is in flight, run `ending`, and wait for it all. Final."""
        if os.getpid() != self._process:
            return
        with self._gate:
            was_closed, self._closed = self._closed, True
            loop, self._loop = self._loop, None
        if not self.threaded:
            if not was_closed:
                for work in self._unstarted.values():
                    work.close()
                try:
                    _undisturbed(self._runner.run, self._end())
                finally:
                    _undisturbed(self._runner.run, self._end_rest())
                    self._runner.get_loop().close()
                    self._end_threads()
            return
        atexit.unregister(self.close)
        if loop is None or self._thread is None:
            return
        try:
            self.ended(asyncio.run_coroutine_threadsafe(self._end(), loop))
            self.ended(asyncio.run_coroutine_threadsafe(self._end_rest(), loop))
            self._end_threads()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(CLOSE_SECONDS)
            if not self._thread.is_alive():  # else something blocks it, which ends with the process
                loop.close()

    def ended(self, ending: concurrent.futures.Future[None]) -> None:
        """Wait for work that ends others; DeadlineError where it does not end in time."""
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
        tasks = list(self._running)  # the others in `_end_rest`: they may be waited for by these
        for task in tasks:
            if not task.cancelling():  # one that its caller gave up may be ending a child, which must not be cut short
                task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self.close_s / 2)
        if self.ending is not None:
            await self.ending()

    async def _end_rest(self) -> None:
        """Of tasks, generators and child processes that work has left behind."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        tasks.add(asyncio.ensure_future(asyncio.get_running_loop().shutdown_asyncgens()))
        with waiting(self.kind, "", f"{len(tasks)} tasks that {self.owner} has left behind", REST_SECONDS) as wait:
            _, left = await asyncio.wait(tasks, timeout=REST_SECONDS)
            if left:
                wait.overdue()
        for task in left:
            log.warning("%s: given up: %r", self.owner, task)
        _given_up.extend(left)
        for child in self._children:
            child.close()  # kills it

    def _end_threads(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + REST_SECONDS
        with waiting(self.kind, "", f"threads that {self.owner} has left behind", REST_SECONDS) as wait:
            for thread in self._workers:
                thread.join(max(0.0, deadline - time.monotonic()))
            if left := [thread.name for thread in self._workers if thread.is_alive()]:
                wait.overdue()
                log.warning("%s: given up: thread %s", self.owner, ", ".join(left))

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        loop.set_default_executor(self._pool)

        def kept(start: str) -> Any:
            async def start_and_keep(*arguments: Any, **settings: Any) -> Any:
                transport, protocol = await getattr(type(loop), start)(loop, *arguments, **settings)
                self._children.add(transport)
                return transport, protocol

            return start_and_keep

        vars(loop).update({start: kept(start) for start in ("subprocess_exec", "subprocess_shell")})
        return loop


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine in a separate event loop."""
    loop = LoopThread("a coroutine", threaded=False)
    try:
        return loop.result(loop.run(work))
    finally:
        loop.close()


def _undisturbed(function: Callable[..., T], *arguments: Any, stop: Callable[[], None] | None = None) -> T:
    """Call it; in another thread where an event loop already runs in this one, as in a notebook. Ctrl-C, which only the
    main thread gets, is `stop`, and ends when the call does."""
    if _get_running_loop() is None:
        return function(*arguments)
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(int).result()  # the thread has started: Ctrl-C while it does would leave the work running
        try:
            return thread.submit(function, *arguments).result()
        except KeyboardInterrupt:
            if stop is not None:
                stop()
            raise


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Until the loop is stopped. SystemExit leaves it too; but that is the failure of one task, and rises where it is
    awaited, for which the loop must continue."""
    while True:
        try:
            return loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            continue
