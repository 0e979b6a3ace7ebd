"""OneMachine: worker processes of this machine, forked from one child process (fork_server.py)."""

import asyncio
import concurrent.futures
import ctypes
import os
import pickle
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from burnish.child.process import ChildDied, ChildProcess, describe_exit
from burnish.controller.cluster import Cluster, Lacking, Lost, Process
from burnish.controller.pool import ResourcePool
from burnish.controller.processes.line import SocketLine
from burnish.controller.processes.memory import Stored, make_folders, store
from burnish.errors import ConfigError, DeadlineError, WorkerError
from burnish.loop_thread import LoopThread
from burnish.models.device import pick_device
from burnish.waits import waiting

ENDING = 10.0  # seconds for processes that were killed to be gone
REPORTED = 5.0  # seconds until the end of a process is known, once its connection has closed
VISIBLE = "CUDA_VISIBLE_DEVICES"
SHARING_NCCL = (2, 30)  # the first version that lets several ranks share a GPU


def nccl_version() -> tuple[int, ...]:
    """Of the library that is loaded, which may be another one than torch was built with."""
    try:
        ask, number = ctypes.CDLL(None).ncclGetVersion, ctypes.c_int()
    except AttributeError:  # none was preloaded
        return tuple(torch.cuda.nccl.version())
    ask(ctypes.byref(number))
    return number.value // 10_000, number.value // 100 % 100, number.value % 100


def check_shared_gpus(per_gpu: int) -> None:
    version = nccl_version()
    if version < SHARING_NCCL:
        raise ConfigError(
            f"trainer.processes_per_gpu={per_gpu}: NCCL {'.'.join(map(str, version))} refuses processes that share a "
            "GPU; install nvidia-nccl-cu13>=2.30 and preload its libnccl.so.2 (LD_PRELOAD), or leave the key out"
        )


@dataclass(frozen=True)
class Started:
    """What is known of a process besides how it is reached."""

    pid: int
    gpu: int | None
    ended: "concurrent.futures.Future[int]"  # its exit status, or minus its signal


def _hang_up(line: SocketLine, ended: "concurrent.futures.Future[int]") -> None:
    with suppress(WorkerError):  # this process ends, too
        line.hang_up()


@dataclass
class OneMachine(Cluster):
    _started: dict[SocketLine, Started] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._places = make_folders()
        self._sockets = self._places[0]  # /dev/shm: the path of a socket has at most 107 characters
        self._ends: dict[int, concurrent.futures.Future[int]] = {}  # by the number of the call that started it
        self._thread = LoopThread("the worker processes", self._close, "worker processes", "worker", 2 * ENDING)
        self._server = self._thread.run(self._start())  # imports torch, while this process reads its data

    async def _start(self) -> ChildProcess:
        path = os.pathsep.join(entry for entry in sys.path if entry)  # what is importable here is importable there
        server = await ChildProcess.start(
            "the process that workers are forked from",
            [sys.executable, "-m", "burnish.controller.processes.fork_server", *self._places],
            env={**os.environ, "PYTHONPATH": path},
            on_part=lambda number, code: self._end_of(number).set_result(code),
        )
        server.gone.add_done_callback(lambda _: self._all_ended())
        return server

    def _end_of(self, number: int) -> "concurrent.futures.Future[int]":
        return self._ends.setdefault(number, concurrent.futures.Future())

    def _all_ended(self) -> None:
        """They end with the process that they were forked from."""
        for end in self._ends.values():
            if not end.done():
                end.set_result(-signal.SIGKILL)

    async def _close(self) -> None:
        with suppress(ChildDied):
            if not self._server.cancelled():  # it may have been about to start
                await (await asyncio.wrap_future(self._server)).close(ENDING)
        for folder in self._places:
            shutil.rmtree(folder, ignore_errors=True)

    def available_devices(self, device: str) -> list[int] | None:
        return [torch.cuda.device_count() * self.surroundings.per_gpu] if pick_device(device).type == "cuda" else None

    def launch(self, pool: ResourcePool) -> tuple[list[Process], None]:
        if len(pool.process_on_nodes) > 1:
            raise ConfigError(
                f"pool {pool.name!r} is on {len(pool.process_on_nodes)} machines, and trainer.executor=processes has "
                "one; set trainer.executor=ray"
            )
        on_gpus = self.available_devices(pool.device) is not None
        processes: list[Process] = []
        for place in pool.places():
            line = SocketLine(f"{self._sockets}/{pool.name}-{place.rank}-{len(self._started)}")
            gpu = self._free_gpu() if on_gpus else None
            request = (line.path, self._environment(gpu), self.surroundings, f"{pool.name}-{place.rank}", self._places)
            try:
                with waiting("worker", "", f"a process of pool {pool.name} to start", self.start_deadline_s) as wait:
                    pid, ended = self._thread.run(self._fork(pickle.dumps(request))).result()
            except TimeoutError:
                wait.overdue()
                self.end(processes, None)
                raise DeadlineError(
                    f"the processes of pool {pool.name!r} have not started within {self.start_deadline_s:g} s "
                    "(ray_wait_register_center_timeout)"
                ) from None
            except (ChildDied, OSError) as error:
                self.end(processes, None)
                raise WorkerError(f"the processes of pool {pool.name!r} could not be started: {error}") from error
            self._started[line] = Started(pid, gpu, ended)
            ended.add_done_callback(partial(_hang_up, line))
            processes.append(Process(line, place))
        return processes, None

    async def _fork(self, request: bytes) -> tuple[int, "concurrent.futures.Future[int]"]:
        number, answer = (await asyncio.wrap_future(self._server)).begin(request)
        pid = await asyncio.wait_for(answer, self.start_deadline_s)
        if isinstance(pid, str):
            raise OSError(pid)
        return pid, self._end_of(number)

    def _free_gpu(self) -> int:
        used = Counter(one.gpu for one in self._started.values() if not one.ended.done())
        return min(range(torch.cuda.device_count()), key=lambda gpu: used[gpu])

    def _environment(self, gpu: int | None) -> dict[str, str]:
        """That of this process, in which a worker on a GPU sees only its own."""
        if gpu is None:
            return dict(os.environ)
        visible = [entry for entry in os.environ.get(VISIBLE, "").split(",") if entry]
        shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"} if self.surroundings.per_gpu > 1 else {}
        return {**os.environ, VISIBLE: visible[gpu] if visible else str(gpu), **shared}

    def wait(self, handles: Sequence[Any], seconds: float) -> Sequence[Any]:
        return list(concurrent.futures.wait(handles, seconds).done)

    def answer(self, handle: Any, seconds: float) -> Any:
        try:
            return handle.result(seconds)
        except concurrent.futures.CancelledError as error:
            raise Lost("this process has closed its connections", Lacking.CLUSTER) from error

    def store(self, memory: np.ndarray) -> Stored:
        return store(memory, self._places).own()

    def stored(self, places: Sequence[Stored], seconds: float) -> list[np.ndarray]:
        return [place.own().read() for place in places]

    def end(self, processes: Sequence[Process], reserved: None) -> None:
        started = [self._started[process.line] for process in processes if isinstance(process.line, SocketLine)]
        for one in started:
            if not one.ended.done():
                with suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
        concurrent.futures.wait([one.ended for one in started], ENDING)

    def why_gone(self, process: Process, lost: Lost) -> str:
        assert isinstance(process.line, SocketLine)
        try:
            code = self._started[process.line].ended.result(REPORTED)
        except TimeoutError:
            return str(lost)
        hint = ", by someone or because the machine ran out of memory" if code == -signal.SIGKILL else ""
        return f"its process ended: {describe_exit(code)}{hint}"

    def leave(self) -> None:
        self._thread.close()
