"""A separate, isolated process tree for each program: `Jail`. unsafe.py has the same with limits alone.

Returns a `Tree`: its first process, what that says (inside.py), and the ends of the program's output to read from.
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
from burnish.sandbox.program import Limits

FIRST_TO_GO = "1000"  # oom_score_adj: where the machine runs out of memory, programs go before training does
F_SETPIPE_SZ = 1031
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
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

    def start(self, limits: Limits, source: str, stdin: str) -> Tree: ...
    def end(self, tree: Tree) -> None: ...
    def cleaned(self, tree: Tree) -> None: ...


class Jail:
    """Making one moves this process itself into the view that its programs get. OSError: the machine refuses."""

    isolated = True

    def __init__(self, executable: str, python_folders: tuple[str, ...]):
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        if linux.MACHINE not in seccomp.ARCHITECTURES:
            raise OSError(0, f"seccomp: there is no filter for {linux.MACHINE}, only for x86_64 and aarch64")
        check_readable(self.proc)
        self._seccomp = seccomp.build()
        self._executable = executable
        users.own_mounts()
        self._ids = users.outside_ids()
        self._alone = self._ids != (os.geteuid(), os.getegid())
        if not self._alone:
            users.check_counted()
        view.enter(python_folders)

    def start(self, limits: Limits, source: str, stdin: str) -> Tree:
        flags = linux.NAMESPACES & ~linux.CLONE_NEWCGROUP
        processes = limits.processes + 1  # the tree's first
        if not users.namespaces_count():
            processes = users.limit_among_others(self.proc, processes, self._ids[0])
        job = inside.JailedProgram(source, limits, self._executable, self._seccomp, view.PRIVATE, processes)
        tree = start_tree(partial(linux.clone, flags), partial(inside.isolated, alone=self._alone), job, stdin)
        try:
            users.write(f"{tree.first}/oom_score_adj", FIRST_TO_GO, self.proc)
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


def start_tree(
    fork: Callable[[], int],
    first: Callable[[inside.JailedProgram, socket.socket], None],
    job: inside.JailedProgram,
    stdin: str,
) -> Tree:
    """`first` is what the new process does; it does not come back."""
    given = sealed_file(stdin)
    ours, theirs = socket.socketpair()
    stdout, write_stdout = os.pipe()
    stderr, write_stderr = os.pipe()
    try:
        pid = fork()
        if pid == 0:
            try:
                first(replace(job, stdin=given, stdout=write_stdout, stderr=write_stderr), theirs)
            finally:
                os._exit(1)
    except OSError:
        Tree(0, ours, stdout, stderr, job.folder).close()
        raise
    finally:
        theirs.close()
        for descriptor in (given, write_stdout, write_stderr):
            os.close(descriptor)
    for descriptor in (stdout, stderr):
        os.set_blocking(descriptor, False)
        with suppress(OSError):  # one user's pipes may hold only so much in all
            fcntl.fcntl(descriptor, F_SETPIPE_SZ, PIPE_BYTES)
    ours.setblocking(False)
    return Tree(pid, ours, stdout, stderr, job.folder)


def sealed_file(text: str) -> int:
    """A descriptor of memory that holds `text` and cannot be changed by whoever gets it. Half a character, which no
    UTF-8 can hold, is passed on as it is: its reader reports the error."""
    descriptor = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(text.encode("utf-8", "surrogatepass"))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
