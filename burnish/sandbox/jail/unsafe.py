"""Process trees under limits alone, for machines that permit no isolation and users who accept that.

They share this machine with everyone, but for their environment and temporary folder; where the kernel takes
a seccomp filter from anyone, they have that too, and so no network. Those of root each become someone whom nobody else
is, so that the kernel counts their processes, and keep the right to root's files. They are ended process by process:
those that leave their parents are adopted, by the tree's first process or by the supervisor.
"""

import itertools
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress

from burnish.sandbox.jail import inside, linux, seccomp, users
from burnish.sandbox.jail.launch import Tree, start_tree
from burnish.sandbox.jail.usage import Usage, check_readable
from burnish.sandbox.program import Limits


class Unsafe:
    isolated = False

    def __init__(self, executable: str):
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        check_readable(self.proc)
        self._executable = executable
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
        tree.close()
        _remove(tree.folder)

    def _kill_below(self, pid: int) -> None:
        """Stop all first, so that none starts another while they are killed one by one."""
        stopped: set[int] = set()
        while found := set(Usage(self.proc, pid).processes()) - stopped:
            _signal(found, signal.SIGSTOP)
            stopped |= found
        _signal(stopped, signal.SIGKILL)


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
        print(f"the sandbox could not remove {folder}: {linux.said(error)}", file=sys.stderr)


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
