"""What the process of a worker does for itself: its folder and path, its log file, its threads, its network interface;
and what is reported of one that hangs or died. Ray starts it in its own surroundings; `enter` makes it one of the run.
"""

import asyncio
import contextlib
import faulthandler
import fcntl
import logging
import os
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from burnish.child.process import log_tail
from burnish.literal import print_text
from burnish.tracking.stacks import lines_of, places_of

STACK_FRAMES = 12
PACKAGE = str(Path(__file__).parents[1])
# Where a thread is that waits for something to do: in the loop of asyncio, or in a pool of threads.
IDLE = ("/selectors.py", "/concurrent/futures/thread.py")
_SIOCGIFADDR = 0x8915  # Linux: the address of an interface


@dataclass(frozen=True)
class Surroundings:
    """What a worker process takes over from the controller."""

    logs: str  # folder for log files
    run: str | None = None  # the run folder, for the status of a process; None: nothing is written
    cwd: str = field(default_factory=os.getcwd)
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    level: int = field(default_factory=lambda: logging.getLogger("burnish").getEffectiveLevel())
    libraries: Mapping[str, Any] = field(default_factory=dict)  # keys and values of `….external_lib`
    per_gpu: int = 1  # processes that share a GPU
    threads: str | None = field(default_factory=lambda: os.environ.get("OMP_NUM_THREADS"))

    @classmethod
    def of(
        cls, logs: Path | None, run: Path | None, libraries: Mapping[str, Any] | None, per_gpu: int = 1
    ) -> "Surroundings":
        """Those of this process. `logs` None: a temporary folder, which the caller removes."""
        folder, said = logs or Path(tempfile.mkdtemp(prefix="burnish-logs-")), dict(libraries or {})
        return cls(str(folder.absolute()), str(run.absolute()) if run else None, libraries=said, per_gpu=per_gpu)


@dataclass(frozen=True)
class Address:
    pid: int
    ip: str
    hostname: str
    node: str  # the cluster's name of the node
    log: str
    log_from: int  # bytes that the log had before this process
    started: int = 0  # when, by the clock of its machine: a number may be another process's by now
    gpu: int | None = None  # which of the GPUs it sees, where that is said

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.hostname} ({self.ip})"


def enter(surroundings: Surroundings, name: str, ip: str, node: str, gpu: int | None = None) -> Address:
    """Become a process of the run. All it prints goes to its log file from now on, behind what is there already."""
    asyncio.set_event_loop_policy(None)  # Ray takes uvloop's where there is one; its subprocesses are others
    os.chdir(surroundings.cwd)
    sys.path[:] = [*surroundings.path, *(entry for entry in sys.path if entry not in surroundings.path)]
    log = Path(surroundings.logs) / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    size = os.fstat(file).st_size
    for descriptor in (1, 2):  # also for what C++ prints
        os.dup2(file, descriptor)
    os.close(file)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (for as long as the process lives)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.enable(2, all_threads=False)  # so that the thread that crashed is among the log's last lines
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger("burnish").addHandler(handler)
    logging.getLogger("burnish").setLevel(surroundings.level)
    if interface := interface_of(ip):
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, interface)
    pid = os.getpid()
    return Address(pid, ip, socket.gethostname(), node, str(log), size, start_time(pid) or 0, gpu)


def share_cores(surroundings: Surroundings, local_world_size: int) -> None:
    """Use this process's share of the node's cores; for the thread that computes, whose own setting counts."""
    said = surroundings.threads or ""
    torch.set_num_threads(int(said) if said.isdigit() else max(1, len(os.sched_getaffinity(0)) // local_world_size))


def interface_of(ip: str) -> str | None:
    """The network interface that has this IPv4 address; None where that is unknown."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an address
                continue
            if socket.inet_ntoa(answer[20:24]) == ip:
                return name
    return None


def gpu_among(given: Sequence[str], seen: str) -> int | None:
    """Which of the GPUs that a process sees (CUDA_VISIBLE_DEVICES) was given to it; None where that is not said.
    Ray hides the others, unless RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES says not to."""
    if not given:
        return None
    if given[0] in seen.split(","):
        return seen.split(",").index(given[0])
    return int(given[0]) if given[0].isdigit() else None


def stacks(thread: threading.Thread | None) -> str:
    """Where a thread of this process is (None: all that work for burnish); the stacks of all go to its log."""
    print_text("stacks of all threads, asked for by the controller:", sys.stderr)
    faulthandler.dump_traceback(2)
    frames = sys._current_frames()
    if thread is not None:
        frame = frames.get(thread.ident or 0)
        return _shown(frame) if frame is not None else ""
    names = {one.ident: one.name for one in threading.enumerate() if one is not threading.current_thread()}
    found = ""
    for ident, frame in frames.items():
        files = [one.f_code.co_filename for one, _ in traceback.walk_stack(frame)]
        if ident in names and not files[0].endswith(IDLE) and any(file.startswith(PACKAGE) for file in files):
            found += f"thread {names[ident]}:\n{_shown(frame)}"
    return found


def stack_of(awaited: Coroutine[Any, Any, Any]) -> str:
    return lines_of(places_of(awaited)[-STACK_FRAMES:])


def _shown(frame: FrameType) -> str:
    return "".join(traceback.format_stack(frame, STACK_FRAMES))


def log_size(address: Address) -> int:
    with contextlib.suppress(OSError):
        return os.path.getsize(address.log)
    return 0


def tail(address: Address) -> str | None:
    """The last lines of a process's log; None where it cannot be read from here."""
    return log_tail(Path(address.log), address.log_from)


def kill_soon(processes: Sequence[Address]) -> None:
    """Make sure processes of this machine that were asked to end have ended, so that others can use their GPUs."""
    left = _wait_for(processes, 1.0)
    for process in left:  # one that is stopped, or stuck, hears nothing else
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGKILL)
    _wait_for(left, 5.0)


def _wait_for(processes: Sequence[Address], seconds: float) -> list[Address]:
    end = time.monotonic() + seconds
    while True:
        left = [one for one in processes if one.started > 0 and start_time(one.pid) == one.started]
        if not left or time.monotonic() >= end:
            return left
        time.sleep(0.02)


def start_time(pid: int) -> int | None:
    """When a process was started, in ticks since its machine was; None where there is none."""
    try:
        state, *facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else int(facts[18])  # one that only waits to be noticed has let go of everything


class Warnings(logging.Handler):
    """Keeps records of level WARNING and above until they are taken, to be sent to the controller."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self._kept.append({"name": record.name, "levelno": record.levelno, "levelname": record.levelname, "msg": text})

    def take(self) -> list[dict[str, Any]]:
        kept, self._kept = self._kept, []
        return kept


def say_again(records: Sequence[dict[str, Any]]) -> None:
    """Handle a worker's records with this process's logging."""
    for record in records:
        logger = logging.getLogger(record["name"])
        if logger.isEnabledFor(record["levelno"]):
            logger.handle(logging.makeLogRecord(record))
