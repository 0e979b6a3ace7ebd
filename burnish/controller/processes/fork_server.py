"""The process that workers are forked from: it has imported torch, once for all of them, and has one thread and no GPU.

`python -m burnish.controller.processes.fork_server FOLDER…`, a child of the controller (burnish/child). A call is one
process to be started; the answer has its id, or why there is none, and a PART with its exit code comes when it has
ended. When the controller's end of the pipe closes, however it ended, the folders are removed and everything is killed.
SIGTERM, which a scheduler sends to all processes of a job, is the controller's affair: it saves, and ends the others.
"""

import asyncio
import contextlib
import ctypes
import os
import pickle
import select
import shutil
import signal
import socket
import sys
import traceback
from typing import Any

import numpy as np

from burnish.child.frames import ANSWER, PART, FrameBuffer, frame, json_bytes, private_pipes
from burnish.controller.process import enter
from burnish.controller.processes.line import ProcessHost, serve

LOCALHOST = "127.0.0.1"
_SET_PDEATHSIG = 1  # prctl


def main(folders: list[str]) -> None:
    reading, writing = private_pipes()
    try:
        _start_processes(reading, writing)
    except Exception:  # noqa: BLE001 (the controller reports that this process has ended)
        traceback.print_exc()
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)


def _start_processes(reading: int, writing: int) -> None:
    """Until the controller's end of the pipes closes."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a byte on `woken`
    signal.signal(signal.SIGTERM, lambda *_: None)  # of forks too; programs that they start have the system's again
    numbers: dict[int, int] = {}  # of the calls that started them, by process
    frames = FrameBuffer()
    while True:
        ready, _, _ = select.select([reading, woken], [], [])
        if reading in ready:
            data = os.read(reading, 2**18)
            if not data:
                return
            for number, _, payload in frames.feed(data):
                arguments = pickle.loads(payload)  # noqa: S301 (from the controller, through a private pipe)
                try:
                    pid = _fork(*arguments, pipes=(reading, writing, woken, wake))
                except OSError as error:  # too many processes or files, or the path is too long
                    os.write(writing, frame(number, ANSWER, json_bytes(str(error))))
                else:
                    numbers[pid] = number
                    os.write(writing, frame(number, ANSWER, json_bytes(pid)))
        if woken in ready:
            os.read(woken, 4096)
            while ended := _ended():
                pid, code = ended
                if pid in numbers:  # not what a worker has left behind
                    os.write(writing, frame(numbers.pop(pid), PART, json_bytes(code)))


def _ended() -> tuple[int, int] | None:
    with contextlib.suppress(ChildProcessError):
        pid, status = os.waitpid(-1, os.WNOHANG)
        return (pid, os.waitstatus_to_exitcode(status)) if pid else None
    return None


def _fork(path: str, environment: dict[str, str], *arguments: Any, pipes: tuple[int, ...]) -> int:
    """Start a worker process that listens at `path`; it does so before it runs, so that nobody asks too early."""
    server = os.getpid()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(1024)
        if pid := os.fork():
            return pid
        try:
            ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != server:  # it has ended before that
                os._exit(1)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.register_at_fork(before=_hold_sigterm, after_in_parent=_let_sigterm, after_in_child=_end_by_sigterm)
            np.random.seed()  # else all draw the same; Python's own generator does so itself
            for pipe in pipes:
                os.close(pipe)
            os.environ.clear()
            os.environ.update(environment)
            _run(listening, *arguments)
        except BaseException:  # noqa: BLE001 (nothing of the parent's may run here)
            traceback.print_exc()
        finally:
            os._exit(1)


def _hold_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _let_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def _end_by_sigterm() -> None:
    """In a fork of a worker, which whoever made it may end so."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_sigterm()


def _run(listening: socket.socket, surroundings: Any, name: str, places: list[str]) -> None:
    address = enter(surroundings, name, LOCALHOST, "")

    async def work() -> None:  # the host belongs to the loop
        await serve(ProcessHost(surroundings, address, places), listening)

    asyncio.run(work())


if __name__ == "__main__":
    main(sys.argv[1:])
