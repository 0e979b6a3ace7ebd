"""Process trees under limits alone, for machines that permit no isolation and users who accept that.

They share this machine with everyone, but for their session, environment and temporary folder; where the kernel takes
a seccomp filter from anyone, they have that too, and so no network. Those of root each become someone whom nobody else
is, so that the kernel counts their processes, and keep the right to root's files. They are ended process by process:
those that leave their parents are adopted, by the tree's first process or by the supervisor.
"""

import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterable
from contextlib import suppress

from burnish.sandbox.jail import inside, linux, seccomp, users
from burnish.sandbox.jail.launch import Tree, start_tree
from burnish.sandbox.jail.usage import Usage
from burnish.sandbox.jail.wire import Setting
from burnish.sandbox.program import Limits


class Unsafe:
    isolated = False

    def __init__(self, setting: Setting):
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        self._executable = setting.executable
        self._seccomp = _accepted_filter()
        self._ids = itertools.cycle(users.spare_ids() or [None])
        if os.geteuid() != 0:
            users.check_counted()
        self._trees: set[int] = set()  # their first processes
        linux.prctl("adopt orphans", linux.PR_SET_CHILD_SUBREAPER, 1)

    def start(self, limits: Limits, source: int, stdin: int) -> Tree:
        uid = next(self._ids)
        processes = limits.processes + 1  # the tree's first
        if uid is None:
            processes = users.limit_among_others(self.proc, processes, os.geteuid())
        folder = tempfile.mkdtemp(prefix="burnish-sandbox-")
        job = inside.Job(source, stdin, limits, self._executable, self._seccomp, folder, processes, uid)
        try:
            os.chown(folder, -1 if uid is None else uid, -1)
            tree = start_tree(os.fork, inside.unsafe, job)
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
    """Also what its owner may not read."""
    for path, names, _ in os.walk(folder):
        for name in names:  # listed after this
            inner = os.path.join(path, name)
            if not os.path.islink(inner):
                os.chmod(inner, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
