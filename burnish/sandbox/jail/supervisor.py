"""The supervisor process: started by local.py, which sends it programs (burnish/child).

Consumes calls, each with a program's limits, source and standard input, and answers with its outcome; a CANCEL ends
the program. One loop serves all programs. It waits for: calls, what programs write and their first processes say, the
end of child processes (a signal, turned into a byte in a socket), and the next look at what a program uses.

It leaves when its parent does, which ends all programs: its pipe ends, or its parent's id changes, should something
that the parent started hold that pipe open.
"""

import json
import os
import pickle
import resource
import selectors
import signal
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from burnish.child.frames import ANSWER, CALL, FrameBuffer, frame, json_bytes, private_pipes
from burnish.sandbox.jail.launch import Jail, Launcher
from burnish.sandbox.jail.linux import refuses, said
from burnish.sandbox.jail.running import Running
from burnish.sandbox.jail.unsafe import Unsafe

OPEN_FILES = 4096  # at most; every new process closes all numbers below this
FILES_OF_ONE, FILES_OF_OURS = 8, 64  # descriptors while a program is started, and those that are always open
LOOKING_SECONDS = 0.05  # of computing, until what programs say is heard again
ORPHAN_SECONDS = 5.0  # between two looks at the parent's id

Failure: TypeAlias = dict[str, object]


def main(argument: str) -> None:
    """`argument`, in JSON: the parent's id, whether to isolate, the Python that runs programs, and where it is."""
    parent, isolated, executable, folders = json.loads(argument)
    reading, writing = private_pipes()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, OPEN_FILES), most))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # of our parent's too, programs would inherit what is blocked
    os.umask(0o022)  # what is made for programs must be theirs to read
    launcher: Launcher | Failure
    try:
        launcher = Jail(executable, tuple(folders)) if isolated else Unsafe(executable)
    except Exception as error:  # noqa: BLE001  whatever it is, whoever sends us programs gets it
        launcher = _failure(error)
    Supervisor(reading, writing, launcher, parent).serve()


class Supervisor:
    """Where programs cannot be launched, `launcher` is the reason every caller gets."""

    def __init__(self, reading: int, writing: int, launcher: Launcher | Failure, parent: int):
        self._reading, self._writing, self._launcher, self._parent = reading, writing, launcher, parent
        self._frames, self._unsent = FrameBuffer(), bytearray()
        self._waiting: deque[tuple[int, bytes]] = deque()  # programs while there are as many as there can be
        self._places = max((resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_OF_OURS) // FILES_OF_ONE, 1)
        self._running: dict[int, Running] = {}  # by their first process
        self._selector = selectors.DefaultSelector()
        for descriptor in (reading, writing):
            os.set_blocking(descriptor, False)
        self._selector.register(reading, selectors.EVENT_READ, self._hear)
        # Wake at the end of child processes.
        listen, wake = socket.socketpair()
        listen.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._selector.register(listen, selectors.EVENT_READ, partial(listen.recv, 4096))

    def serve(self) -> None:
        while os.getppid() == self._parent:
            next_look = min((running.next_look for running in self._running.values()), default=float("inf"))
            can_begin = self._waiting and len(self._running) < self._places
            pause = 0 if can_begin else min(max(next_look - time.monotonic(), 0), ORPHAN_SECONDS)
            for key, _ in self._selector.select(pause):
                key.data()
            self._reap()
            if self._waiting and len(self._running) < self._places:  # one, then hear those that run again
                self._begin(*self._waiting.popleft())
            # Look at the programs whose time it is, the most overdue first; not for so long that others must wait.
            end = time.thread_time() + LOOKING_SECONDS
            for running in sorted(self._running.values(), key=lambda running: running.next_look):
                if time.thread_time() > end:
                    break
                running.check(time.monotonic(), len(self._running))
        self._leave()

    def _hear(self) -> None:
        try:
            data = os.read(self._reading, 2**18)
        except BlockingIOError:
            return
        if not data:
            self._leave()
        for number, kind, payload in self._frames.feed(data):
            if kind == CALL:
                self._waiting.append((number, payload))
                continue
            self._waiting = deque(each for each in self._waiting if each[0] != number)
            for running in self._running.values():
                if running.number == number:
                    running.end("failed", "cancelled")

    def _begin(self, number: int, payload: bytes) -> None:
        if isinstance(self._launcher, dict):
            self._answer(number, self._launcher)
            if not self._launcher["refused"]:
                self._leave()  # another supervisor may have more luck
            return
        limits, source, stdin = pickle.loads(payload)  # noqa: S301  from the parent, through a private pipe
        try:
            tree = self._launcher.start(limits, source, stdin)
            self._running[tree.first] = running = Running(number, limits, self._launcher, tree)
            running.watch(self._selector)
        except OSError as error:
            self._answer(number, _failure(error))

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._running:
                running = self._running.pop(pid)
                self._answer(running.number, running.reaped())

    def _answer(self, number: int, outcome: dict[str, object]) -> None:
        """Send what can be sent now, and the rest when the parent takes it."""
        if not self._unsent:
            self._selector.register(self._writing, selectors.EVENT_WRITE, self._send)
        self._unsent += frame(number, ANSWER, json_bytes(outcome))
        self._send()

    def _send(self) -> None:
        try:
            del self._unsent[: os.write(self._writing, self._unsent)]
        except BlockingIOError:
            return
        except OSError:  # the parent has died, which we will notice
            self._unsent.clear()
        if not self._unsent:
            self._selector.unregister(self._writing)

    def _leave(self) -> None:
        for running in self._running.values():
            running.end("failed", "the supervisor ends")
        while self._running:
            with suppress(ChildProcessError):
                pid = os.wait()[0]
                if pid in self._running:
                    self._running.pop(pid).reaped()
        os.set_blocking(self._writing, True)
        while self._unsent:
            self._send()
        sys.exit()


def _failure(error: BaseException) -> Failure:
    """What an Outcome says of it."""
    return {"status": "failed", "reason": said(error), "refused": refuses(error)}
