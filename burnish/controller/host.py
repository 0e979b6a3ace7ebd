"""WorkerHost: what runs in a worker process. It holds the workers of all roles of its place and computes for them.

The executor says how it is reached (cluster.py). Jobs of the controller run one after another, in the order they were
given out, on the thread `compute`; calls of peers run, many at once, on the event loop, which never computes itself.
"""

import asyncio
import logging
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.distributed

from burnish import spans
from burnish.controller.dispatch import check_direct
from burnish.controller.group import ClassWithInitArgs
from burnish.controller.process import Address, Surroundings, Warnings, log_size, share_cores, stack_of, stacks, tail
from burnish.controller.wire import Carried, carry, flat, pack, restore, unpack
from burnish.controller.worker import Worker, WorkerPlace, call_worker, call_worker_async, device_of
from burnish.controller.worker_status import NO_CALL, WorkerStatus
from burnish.errors import BurnishError, WorkerError
from burnish.tracking.watchdog import Watchdog
from burnish.user_code import import_libraries

INLINE = 50_000  # bytes of arguments, and of each tensor of a result, that travel with the call; Ray takes up to 100 KB


class WorkerReply(NamedTuple):
    """What a WorkerHost sends back: the packed result or the failure, and what it logged."""

    skeleton: bytes = b""
    memory: Sequence[Any] = ()  # of its tensors: arrays, or what `WorkerHost.keep` gave for them
    failure: Carried | None = None
    records: Sequence[dict[str, Any]] = ()

    def value(self, what: str = "a call", on_tensor: Callable[[int, torch.Tensor], None] | None = None) -> Any:
        """The result of `what`, or the failure raised; `on_tensor` as in `unpack`."""
        if self.failure is not None:
            raise restore(self.failure)
        try:
            return unpack(self.skeleton, self.memory, on_tensor)
        except Exception as error:
            raise WorkerError(f"the result of {what} cannot be read here: {type(error).__name__}: {error}") from error


class WorkerHost:
    """One worker process. An executor's subclass says how it is reached."""

    pickler: ClassVar[type[pickle.Pickler]] = pickle.Pickler

    def __init__(self, surroundings: Surroundings, address: Address):
        self._surroundings, self._address = surroundings, address
        self._workers: dict[str, Worker] = {}
        self._compute = ThreadPoolExecutor(1, "compute")
        self._thread: threading.Thread | None = None  # that of `compute`, once it runs
        self._direct: dict[Coroutine[Any, Any, Any], tuple[str, float]] = {}  # peers' calls: what, and since when
        self._turns, self._turn = asyncio.Condition(), 0
        self._doing = ""
        self._lines, self._dumped = "", -1  # the last of its log, and how long that was with the stacks after them
        self._warnings = Warnings()
        self._store: torch.distributed.TCPStore | None = None
        if surroundings.run is not None:
            Watchdog(Path(surroundings.run), Path(address.log).stem).start()  # for as long as the process lives
            spans.record(Path(surroundings.run), Path(address.log).stem)

    async def fetch(self, parts: Sequence[Any]) -> list[Any]:
        """The parts of a message that were sent by reference, in their places."""
        return list(parts)

    def keep(self, memory: np.ndarray) -> Any:
        """What an answer carries of a large tensor's memory: itself, or where it is."""
        return memory

    async def address(self) -> Address:
        return self._address

    async def run(self, number: int, what: str, job: str, parts: list[Any], answers: bool) -> WorkerReply:
        """Run a job (below) when it is the turn of this number. `parts`: its packed arguments, some by reference."""
        async with self._turns:
            await self._turns.wait_for(lambda: self._turn == number)
            try:
                running = self._compute.submit(self._answer, what, job, await self.fetch(parts), answers)
            finally:
                self._turn += 1
                self._turns.notify_all()
        return await asyncio.wrap_future(running)

    async def direct(self, role: str, method: str, skeleton: bytes, memory: list[np.ndarray]) -> WorkerReply:
        try:
            worker = self._workers[role]
            check_direct(type(worker), method)
            what = f"{type(worker).__name__}.{method}"
            args, kwargs = self._unpacked(what, [skeleton, *memory])
            call = call_worker_async(worker, method, args, kwargs)
            self._direct[call] = what, time.monotonic()
            try:
                return self._packed(what, await call)
            finally:
                del self._direct[call]
        except BurnishError as error:
            return _failing(error)

    async def status(self) -> WorkerStatus:
        """What the thread `compute` is doing, and which calls of peers run. The stacks of all threads go to the log."""
        if log_size(self._address) != self._dumped:  # it wrote something since it was asked before
            self._lines = tail(self._address) or ""  # before the log ends with stacks
        calls, now = sorted(self._direct, key=lambda call: self._direct[call][1]), time.monotonic()
        if self._doing or not calls:
            stack = stacks(self._thread or threading.current_thread())
        else:  # it waits for another task or another thread
            stack = stack_of(calls[0]) + stacks(None)
        self._dumped = log_size(self._address)
        peers = tuple((what, now - since) for what, since in map(self._direct.__getitem__, calls))
        return WorkerStatus(self._doing or NO_CALL, stack, self._lines, peers)

    def _answer(self, what: str, job: str, parts: list[Any], answers: bool) -> WorkerReply:
        self._thread, self._doing = threading.current_thread(), what
        try:
            result = getattr(self, job)(*self._unpacked(what, parts))
            answer = self._packed(what, result if answers else None)
            kept = [self.keep(memory) if memory.nbytes > INLINE else memory for memory in answer.memory]
            answer = answer._replace(memory=kept)
        except BurnishError as error:
            answer = _failing(error)
        except SystemExit as error:  # would end this thread, and with it all later jobs
            answer = _failing(WorkerError(f"{what} left by sys.exit({error.code!r})"))
        finally:
            self._doing = ""
        return answer._replace(records=self._warnings.take())

    def _unpacked(self, what: str, parts: list[Any]) -> Any:
        skeleton, *memory = parts
        try:
            return unpack(skeleton, memory)
        except Exception as error:
            raise WorkerError(
                f"the arguments of {what} cannot be read in the worker process: {type(error).__name__}: {error}"
            ) from error

    def _packed(self, what: str, result: Any) -> WorkerReply:
        try:
            skeleton, tensors = pack(result, self.pickler)
        except Exception as error:
            raise WorkerError(
                f"the result of {what}, a {type(result).__name__}, cannot be sent: {type(error).__name__}: {error}"
            ) from error
        return WorkerReply(skeleton, [flat(tensor) for tensor in tensors])

    # --- jobs: on the thread `compute` ---

    def open_store(self) -> tuple[str, int]:
        """Rank 0: where the others meet it. The system chooses a free port, which is held from here on."""
        self._store = torch.distributed.TCPStore(self._address.ip, 0, is_master=True, wait_for_workers=False)
        return self._address.ip, self._store.port

    def join(self, place: WorkerPlace, meeting: tuple[str, int] | None) -> None:
        """Take a place: its device, its share of the cores, the user's libraries, and with the others the process group
        of the pool."""
        device = device_of(place)
        import_libraries(self._surroundings.libraries)
        share_cores(self._surroundings, place.local_world_size)
        if device.type == "cuda":
            torch.cuda.set_device(device)
            if self._surroundings.per_gpu > 1:
                torch.cuda.set_per_process_memory_fraction(1 / self._surroundings.per_gpu)
        root = logging.getLogger()
        if place.rank == 0 and self._warnings not in root.handlers:
            root.addHandler(self._warnings)
        if meeting is None:
            return
        timeout = timedelta(seconds=place.timeout_s)
        store = self._store or torch.distributed.TCPStore(*meeting, is_master=False, timeout=timeout)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        torch.distributed.init_process_group(
            backend, store=store, rank=place.rank, world_size=place.world_size, timeout=timeout
        )

    def make(self, role: str, made: ClassWithInitArgs, place: WorkerPlace) -> None:
        self._workers[role] = made.make(place)

    def call(self, role: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return call_worker(self._workers[role], method, args, kwargs)


def _failing(error: BurnishError) -> WorkerReply:
    traceback.print_exception(error)  # into the log: a deliberate error crosses without its traceback
    return WorkerReply(failure=carry(error))
