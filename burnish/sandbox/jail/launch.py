"""A separate process tree for each program: isolated by `Jail`, under limits alone by `Unsafe`.

A `Tree` has its first process, what that says (inside.py), and the ends of the program's output to read from. Whoever
has one ends it with `end`, waits for its first process, and then calls `cleaned`.
"""

import fcntl
import itertools
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from burnish.sandbox import Limits
from burnish.sandbox.jail import inside, linux, seccomp, users, view
from burnish.sandbox.jail.cores import Cores
from burnish.sandbox.jail.usage import Usage, check_readable, socket_bytes

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


class _Launcher:
    """`start` makes a tree, `end` kills all of it. OSError: this machine refuses."""

    socket_bytes = 0  # as in Usage

    def __init__(self, executable: str):
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        check_readable(self.proc)
        self.cores = Cores(self.proc)
        self._executable = executable

    def cleaned(self, tree: Tree) -> None:
        """Remove what is left of it, once its first process has been waited for."""
        tree.close()


class Jail(_Launcher):
    """Making one moves this process itself into the view that its programs get."""

    isolated = True

    def __init__(self, executable: str, python_folders: tuple[str, ...]):
        super().__init__(executable)
        if linux.MACHINE not in seccomp.ARCHITECTURES:
            raise OSError(0, f"seccomp: there is no filter for {linux.MACHINE}, only for x86_64 and aarch64")
        self._seccomp = seccomp.build()
        self.socket_bytes = socket_bytes(self.proc)
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
            for kind, number in zip(("uid", "gid"), self._ids, strict=True):  # who it is, in its user namespace
                users.write(f"{tree.first}/{kind}_map", f"{users.INSIDE} {number} 1", self.proc)
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


class Unsafe(_Launcher):
    """For machines that permit no isolation and users who accept that. Programs share this machine with everyone, but
    for their environment and temporary folder; where the kernel takes a seccomp filter from anyone, they have that too,
    and so no network. Those of root each become someone whom nobody else is, so that the kernel counts their processes,
    and keep the right to root's files. They are ended process by process: those that leave their parents are adopted,
    by the tree's first process or by the supervisor."""

    isolated = False

    def __init__(self, executable: str):
        super().__init__(executable)
        self._seccomp = _accepted_filter()
        self._ids = itertools.cycle(users.spare_ids() or [None])
        if os.geteuid() != 0:
            users.check_counted()
        self._trees: set[int] = set()  # their first processes
        linux.prctl("adopt orphans", linux.PR_SET_CHILD_SUBREAPER, 1)

    def start(self, limits: Limits, source: str, stdin: str) -> Tree:
        uid = next(self._ids)
        processes = limits.processes + 1  # the tree's first
        if uid is None:
            processes = users.limit_among_others(self.proc, processes, os.geteuid())
        folder = tempfile.mkdtemp(prefix="burnish-sandbox-")
        job = inside.JailedProgram(source, limits, self._executable, self._seccomp, folder, processes, uid)
        try:
            os.chown(folder, -1 if uid is None else uid, -1)
            tree = start_tree(os.fork, inside.unsafe, job, stdin)
        except OSError:
            os.rmdir(folder)
            raise
        self._trees.add(tree.first)
        return tree

    def end(self, tree: Tree) -> None:
        self._kill_below(tree.first)

    def cleaned(self, tree: Tree) -> None:
        """A program that killed its first process has left us its orphans."""
        self._trees.remove(tree.first)
        for child in Usage(self.proc, os.getpid()).children():
            if child not in self._trees:
                self._kill_below(child)
                os.waitpid(child, 0)
        super().cleaned(tree)
        _remove(tree.folder)

    def _kill_below(self, pid: int) -> None:
        """Stop all first, so that none starts another while they are killed one by one."""
        stopped: set[int] = set()
        while found := set(Usage(self.proc, pid).processes()) - stopped:
            _signal(found, signal.SIGSTOP)
            stopped |= found
        _signal(stopped, signal.SIGKILL)


Launcher: TypeAlias = Jail | Unsafe


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


def _accepted_filter() -> bytes | None:
    """The filter where this machine takes one, found out by a process that can be spared."""
    if linux.MACHINE not in seccomp.ARCHITECTURES:
        return None
    program = seccomp.build()
    child = os.fork()
    if child == 0:
        with suppress(OSError):
            linux.prctl("no new rights", linux.PR_SET_NO_NEW_PRIVS, 1)
            seccomp.install(program)
            os._exit(0)
        os._exit(1)
    return program if os.waitpid(child, 0)[1] == 0 else None


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _remove(folder: str) -> None:
    """Also what its owner may not read, and folders in folders without end: none is entered before it lies on top."""
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fresh = (f"{tempfile.gettempprefix()}-{os.getpid()}-{number}" for number in itertools.count())
            while names := os.listdir(top):
                for name in names:
                    _unlink(name, top, top, fresh)
        finally:
            os.close(top)
        os.rmdir(folder)
    except OSError as error:
        sys.stderr.write(f"the sandbox could not remove {folder}: {linux.said(error)}\n")


def _unlink(name: str, folder: int, top: int, fresh: Iterator[str]) -> None:
    """A file, or a folder in `top`. A folder elsewhere is moved to `top`, under a name that nobody has there."""
    try:
        os.unlink(name, dir_fd=folder)
        return
    except (IsADirectoryError, PermissionError):
        os.chmod(name, 0o700, dir_fd=folder)
    if folder != top:
        os.rename(name, next(fresh), src_dir_fd=folder, dst_dir_fd=top)
        return
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        for each in os.listdir(inner):
            _unlink(each, inner, top, fresh)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
