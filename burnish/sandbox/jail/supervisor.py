"""The supervisor process: started by child.py with its socket as standard input.

Consumes requests from that socket (wire.py) and hands each program's outcome to the socket that came with it. One
loop serves all programs. It waits for: requests, what programs write and their first processes say, callers that hang
up, the end of child processes (a signal, turned into a byte in a socket), and the next look at what a program uses.

It leaves when its parent does, which ends all programs: its socket ends, or its parent's id changes, should something
that the parent started hold that socket open.
"""

import errno
import os
import resource
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from burnish.sandbox.jail.launch import Jail, Launcher
from burnish.sandbox.jail.linux import refuses, said
from burnish.sandbox.jail.running import Running
from burnish.sandbox.jail.unsafe import Unsafe
from burnish.sandbox.jail.wire import DESCRIPTORS, LIMITS, Setting, pack_outcome, unpack_limits

OPEN_FILES = 4096  # at most; every new process closes all numbers below this
FILES_OF_ONE, FILES_OF_OURS = 8, 64  # descriptors while a program is started, and those that are always open
LOOKING_SECONDS = 0.05  # of computing, until what programs say is heard again
ORPHAN_SECONDS = 5.0  # between two looks at the parent's id

Failure: TypeAlias = dict[str, object]


def main(argument: str) -> None:
    setting = Setting.from_json(argument)
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, OPEN_FILES), most))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # of our parent's too, programs would inherit what is blocked
    os.umask(0o022)  # what is made for programs must be theirs to read
    launcher: Launcher | Failure
    try:
        launcher = Jail(setting) if setting.isolated else Unsafe(setting)
    except Exception as error:  # noqa: BLE001  whatever it is, whoever sends us programs is told
        launcher = _failure(error)
    Supervisor(control, launcher, setting.parent).serve()


class Supervisor:
    """Where programs cannot be launched, `launcher` is what everyone is told."""

    def __init__(self, control: socket.socket, launcher: Launcher | Failure, parent: int):
        self._control, self._launcher, self._parent = control, launcher, parent
        self._places = max((resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_OF_OURS) // FILES_OF_ONE, 1)
        self._running: dict[int, Running] = {}  # by their first process
        self._selector = selectors.DefaultSelector()
        control.setblocking(False)
        self._wake_at_child_ends()

    def serve(self) -> None:
        while os.getppid() == self._parent:
            self._listen(len(self._running) < self._places)
            for key, _ in self._selector.select(self._pause()):
                key.data()
            self._reap()
            self._look()
        self._leave()

    def _look(self) -> None:
        """At the programs whose time it is, the most overdue first; but not for so long that others must wait."""
        end = time.thread_time() + LOOKING_SECONDS
        for running in sorted(self._running.values(), key=lambda running: running.next_look):
            if time.thread_time() > end:
                return
            running.check(time.monotonic(), len(self._running))

    def _pause(self) -> float:
        next_look = min((running.next_look for running in self._running.values()), default=float("inf"))
        return min(max(next_look - time.monotonic(), 0), ORPHAN_SECONDS)

    def _listen(self, wanted: bool) -> None:
        """Take requests, or leave them waiting while there are as many programs as there can be."""
        listening = self._control in self._selector.get_map()
        if wanted and not listening:
            self._selector.register(self._control, selectors.EVENT_READ, self._accept)
        elif listening and not wanted:
            self._selector.unregister(self._control)

    def _accept(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, LIMITS.size, DESCRIPTORS)
        except BlockingIOError:
            return
        if not message:
            self._leave()
        if descriptors:
            self._begin(message, socket.socket(fileno=descriptors[0]), descriptors[1:])
        for descriptor in descriptors[1:]:
            os.close(descriptor)

    def _begin(self, message: bytes, caller: socket.socket, files: list[int]) -> None:
        caller.setblocking(False)
        if isinstance(self._launcher, dict):
            self._answer(caller, pack_outcome(self._launcher, b"", b""))
            if not self._launcher["refused"]:
                self._leave()  # another supervisor may have more luck
            return
        try:
            if len(files) < DESCRIPTORS - 1:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            limits = unpack_limits(message)
            tree = self._launcher.start(limits, *files)
            running = Running(limits, caller, self._launcher, tree)
            running.watch(self._selector)
            self._running[tree.first] = running
        except OSError as error:
            self._answer(caller, pack_outcome(_failure(error), b"", b""))

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
                self._answer(running.caller, running.reaped())

    def _answer(self, caller: socket.socket, answer: bytes | memoryview) -> None:
        """Send what can be sent now, and the rest when the caller takes it."""
        with suppress(KeyError):
            self._selector.unregister(caller)
        try:
            answer = memoryview(answer)[caller.send(answer) :]
        except BlockingIOError:
            pass
        except OSError:  # it hung up
            answer = b""
        if answer:
            self._selector.register(caller, selectors.EVENT_WRITE, partial(self._answer, caller, answer))
        else:
            caller.close()

    def _wake_at_child_ends(self) -> None:
        listen, wake = socket.socketpair()
        listen.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._selector.register(listen, selectors.EVENT_READ, partial(listen.recv, 4096))

    def _leave(self) -> None:
        for running in self._running.values():
            running.end("failed", "the supervisor ends")
        while self._running:
            with suppress(ChildProcessError):
                pid = os.wait()[0]
                if pid in self._running:
                    self._running.pop(pid).reaped()
        sys.exit()


def _failure(error: BaseException) -> Failure:
    """What an Outcome says of it."""
    return {"status": "failed", "reason": said(error), "refused": refuses(error)}
