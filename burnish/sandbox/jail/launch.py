"""A process tree of its own for each program, isolated: `Jail`. unsafe.py has the same with limits alone.

Hands out a `Tree`: its first process, what that says (inside.py), and the ends of the program's output to read from.
Whoever has one ends it with `end`, waits for its first process, and then calls `cleaned`.
"""

import fcntl
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from burnish.sandbox.jail import inside, linux, seccomp, users, view
from burnish.sandbox.jail.usage import check_readable
from burnish.sandbox.jail.wire import Setting
from burnish.sandbox.program import Limits

FIRST_TO_GO = b"1000"  # oom_score_adj: where the machine runs out of memory, programs go before training does
F_SETPIPE_SZ = 1031
PIPE_BYTES = 2**18  # a program that writes much should not have to wait for us


@dataclass(frozen=True)
class Tree:
    first: int
    channel: socket.socket
    stdout: int
    stderr: int
    folder: str

    def close(self) -> None:
        self.channel.close()
        os.close(self.stdout)
        os.close(self.stderr)


class Launcher(Protocol):
    isolated: bool
    proc: int  # an open /proc

    def start(self, limits: Limits, source: int, stdin: int) -> Tree: ...
    def end(self, tree: Tree) -> None: ...
    def cleaned(self, tree: Tree) -> None: ...


class Jail:
    """Making one moves this process itself into the view that its programs get. OSError: the machine refuses."""

    isolated = True

    def __init__(self, setting: Setting):
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        if linux.MACHINE not in seccomp.ARCHITECTURES:
            raise OSError(0, f"seccomp: there is no filter for {linux.MACHINE}, only for x86_64 and aarch64")
        check_readable(self.proc)
        self._seccomp = seccomp.build()
        self._executable = setting.executable
        users.own_mounts()
        self._ids = users.outside_ids()
        self._alone = self._ids != (os.geteuid(), os.getegid())
        if not self._alone:
            users.check_counted()
        view.enter(setting.folders)

    def start(self, limits: Limits, source: int, stdin: int) -> Tree:
        flags = linux.NAMESPACES & ~linux.CLONE_NEWCGROUP
        processes = limits.processes + 1  # the tree's first
        if not users.namespaces_count():
            processes = users.limit_among_others(self.proc, processes, self._ids[0])
        job = inside.Job(source, stdin, limits, self._executable, self._seccomp, view.PRIVATE, processes)
        tree = start_tree(partial(linux.clone, flags), partial(inside.isolated, alone=self._alone), job)
        try:
            _offer_to_oom(self.proc, tree.first)
            users.name_child(self.proc, tree.first, *self._ids)
            tree.channel.send(b"g")
        except OSError:
            self.end(tree)
            os.waitpid(tree.first, 0)
            tree.close()
            raise
        return tree

    def end(self, tree: Tree) -> None:
        """The kernel ends all of a process namespace with its first process."""
        os.kill(tree.first, signal.SIGKILL)

    def cleaned(self, tree: Tree) -> None:
        tree.close()


def start_tree(fork: Callable[[], int], first: Callable[[inside.Job, socket.socket], None], job: inside.Job) -> Tree:
    """`first` is what the new process does; it does not come back."""
    ours, theirs = socket.socketpair()
    stdout, write_stdout = os.pipe()
    stderr, write_stderr = os.pipe()
    try:
        pid = fork()
        if pid == 0:
            try:
                first(replace(job, stdout=write_stdout, stderr=write_stderr), theirs)
            finally:
                os._exit(1)
    except OSError:
        Tree(0, ours, stdout, stderr, job.folder).close()
        raise
    finally:
        theirs.close()
        os.close(write_stdout)
        os.close(write_stderr)
    for descriptor in (stdout, stderr):
        os.set_blocking(descriptor, False)
        with suppress(OSError):  # one user's pipes may hold only so much in all
            fcntl.fcntl(descriptor, F_SETPIPE_SZ, PIPE_BYTES)
    ours.setblocking(False)
    return Tree(pid, ours, stdout, stderr, job.folder)


def _offer_to_oom(proc: int, pid: int) -> None:
    descriptor = os.open(f"{pid}/oom_score_adj", os.O_WRONLY, dir_fd=proc)
    try:
        os.write(descriptor, FIRST_TO_GO)
    finally:
        os.close(descriptor)
