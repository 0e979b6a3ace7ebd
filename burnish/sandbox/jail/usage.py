"""What a program's whole tree uses, read from /proc outside of it: processor seconds, waiting, memory, processes.

A look at a tree costs four small reads for each process. What has ended since the last look counts with what was last
seen of it, or with what its parent got when it waited for it, whichever is more; and what was not seen is taken to
have waited for its seconds as what was seen did.
"""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from burnish.sandbox.jail.linux import same_memory

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
OUTSIDE_PAGES = (b"VmPTE:", b"VmSwap:")  # what a process has besides its pages in memory: page tables, swapped pages


class _Task(NamedTuple):
    """What one thread has had so far, in seconds."""

    computed: float = 0.0
    queued: float = 0.0  # ready to run while others had the core
    ready: bool = False  # to run, now

    def less(self, other: "_Task") -> "_Task":
        return _Task(self.computed - other.computed, self.queued - other.queued)

    @property
    def waiting(self) -> float:
        """How much of the time it is likely to wait, after it was seen."""
        return self.queued / (self.computed + self.queued) if self.ready and self.queued else 0.0


@dataclass
class Usage:
    """Of the tree below the process `first`, which itself is not counted. `proc`: an open /proc."""

    proc: int
    first: int
    socket_bytes: int = 0  # that one socket counts for; 0: the tree has no network of its own to count them in
    tasks: int = 0  # processes and threads alive
    memory: int = 0  # bytes; counts shared pages once for each process
    computed: float = 0.0  # seconds on a core
    computed_by_first: float = 0.0  # of which it has reaped orphans
    waited: float = 0.0  # seconds of the clock in which the tree waited for a busy core
    _looked: float = 0.0
    _discarding: bool = False  # it has ignored SIGCHLD: what its children compute counts nowhere, so no waiting does
    _alive: dict[int, _Task] = field(default_factory=dict)
    _seen: _Task = field(default_factory=_Task)  # of all tasks, also those that have ended

    def look(self, now: float) -> None:
        """`now`: by the clock."""
        alive: dict[int, _Task] = {}
        self.memory, counted, passed = self._in_sockets(), 0.0, now - self._looked
        for process in self._walk():
            self._discarding |= process.discards
            counted += process.computed_by_ended_children
            if process.pid == self.first:
                self.computed_by_first = process.computed
            else:
                counted += process.computed
                self.memory += process.memory
                alive.update((task, self._schedule(process, task, passed)) for task in process.tasks)
        more = [task.less(self._alive.get(number, _Task())) for number, task in alive.items()]
        computed, queued = sum(task.computed for task in more), sum(task.queued for task in more)
        self._seen = _Task(self._seen.computed + computed, self._seen.queued + queued)
        before, self.computed = self.computed, max(self.computed, counted, self._seen.computed)
        unseen = max(self.computed - before - computed, 0.0)
        if self._seen.computed:
            queued += unseen * max(self._seen.queued, 0.0) / self._seen.computed
        queued += passed * sum(self._alive[number].waiting for number in self._alive.keys() - alive.keys())
        if not self._discarding:
            self.waited = max(self.waited + waited(passed, computed + unseen, queued), 0.0)
        self._alive, self.tasks, self._looked = alive, len(alive), now

    def exact_memory(self) -> int:
        """With shared pages shared out among the processes; slow."""
        processes = [process for process in self._walk() if process.pid != self.first]
        threads = {one.pid: one.thread for one in processes}
        alone = [one for one in processes if not same_memory(one.thread, threads.get(one.parent, one.parent))]
        return self._in_sockets() + sum(map(self._proportional, alone))

    def processes(self) -> list[int]:
        """The ids of the tree, parents before their children, `first` included."""
        return [process.pid for process in self._walk()]

    def children(self) -> list[int]:
        """Of the first process."""
        process = self._process(self.first)
        return [child for task in process.tasks for child in self._children(self.first, task)] if process else []

    def _walk(self) -> list["_ProcessUsage"]:
        found: dict[int, _ProcessUsage] = {}
        pids = [self.first]
        for pid in pids:  # grows while it is walked; a process that loses its parent meanwhile is met twice
            process = self._process(pid) if pid not in found else None
            if process is not None:
                found[pid] = process
                for task in process.tasks:
                    pids += self._children(pid, task)
        return list(found.values())

    def _children(self, pid: int, task: int) -> list[int]:
        return [int(word) for word in read(self.proc, f"{pid}/task/{task}/children").split()]

    def _process(self, pid: int) -> "_ProcessUsage | None":
        words = _stat(read(self.proc, f"{pid}/stat"))
        if not words:
            return None
        thread, tasks = pid, [pid]
        if int(words[17]) != 1:
            tasks = []
            with suppress(OSError):  # it has just ended
                folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.proc)
                try:
                    tasks = [int(name) for name in os.listdir(folder)]
                finally:
                    os.close(folder)
        if words[0] == b"Z":  # its first thread has exited: only the others know what the process has
            stats = ((task, _stat(read(self.proc, f"{task}/stat"))) for task in tasks)
            thread, words = next((one for one in stats if one[1] and one[1][0] != b"Z"), (pid, words))
        computed, by_children = int(words[11]) + int(words[12]), int(words[13]) + int(words[14])
        status = read(self.proc, f"{thread}/status")
        ignored = next((line for line in status.splitlines() if line.startswith(b"SigIgn:")), b": 0")
        return _ProcessUsage(
            pid, thread, int(words[1]), words, tasks, computed / TICKS, by_children / TICKS,
            memory=int(words[21]) * PAGE + _kilobytes(status, *OUTSIDE_PAGES),
            discards=bool(int(ignored.split()[1], 16) >> (signal.SIGCHLD - 1) & 1),
        )  # fmt: skip

    def _schedule(self, process: "_ProcessUsage", task: int, passed: float) -> _Task:
        """The kernel adds waiting up only when it is over. So a task that is ready now counts as waiting for as long
        as it has not run: since the last look, `passed` seconds ago, or its start. Where it slept meanwhile that is too
        much, until the next look."""
        words = read(self.proc, f"{process.pid}/task/{task}/schedstat").split()
        found = _Task(int(words[0]) / 1e9, int(words[1]) / 1e9) if len(words) >= 2 else _Task()
        stat = process.stat if process.tasks == [task] else _stat(read(self.proc, f"{process.pid}/task/{task}/stat"))
        if not stat or stat[0] != b"R":
            return found
        last = self._alive.get(task)
        if last is not None and last.computed == found.computed:
            return _Task(found.computed, max(last.queued + passed, found.queued), ready=True)
        since = min(passed, time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / TICKS)
        had = found.less(last or _Task())
        waits = max(since - had.computed - max(had.queued, 0.0), 0.0)
        return _Task(found.computed, found.queued + waits, ready=True)

    def _proportional(self, process: "_ProcessUsage") -> int:
        if pages := _kilobytes(read(self.proc, f"{process.thread}/smaps_rollup"), b"Pss:"):
            return pages + _kilobytes(read(self.proc, f"{process.thread}/status"), *OUTSIDE_PAGES)
        now = self._process(process.pid)  # it has just ended, or we may not know more
        return now.memory if now else 0

    def _in_sockets(self) -> int:
        """The most that can be in them. Also those without a descriptor count: closed ones with unread data, and
        connections that nobody has accepted."""
        words = read(self.proc, f"{self.first}/net/sockstat").split(maxsplit=3) if self.socket_bytes else []
        return int(words[2]) * self.socket_bytes if len(words) > 2 else 0


@dataclass(frozen=True)
class _ProcessUsage:
    pid: int
    thread: int  # one that has not exited; mostly the first, whose number is the process's
    parent: int
    stat: list[bytes]
    tasks: list[int]
    computed: float
    computed_by_ended_children: float
    memory: int
    discards: bool = False  # the seconds of its children: it ignores SIGCHLD


def waited(passed: float, computed: float, queued: float) -> float:
    """How much of the `passed` seconds a tree waited whose tasks computed and queued for so many: exact for one task.
    For several, the share of the time they asked for that they did not get. Below 0: so much less than was said."""
    return min(queued, passed * queued / (computed + queued)) if queued > 0 else max(queued, -passed)


def check_readable(proc: int) -> None:
    """OSError: this kernel does not tell what a look needs, and nothing would be counted."""
    own = f"{os.getpid()}/task/{os.getpid()}"
    if not read(proc, f"{own}/schedstat").rpartition(b" ")[0].strip(b"0 "):
        raise OSError(0, "read /proc/PID/schedstat: this kernel does not say who waits for a core (CONFIG_SCHED_INFO)")
    try:
        os.stat(f"{own}/children", dir_fd=proc)
    except FileNotFoundError:
        raise OSError(0, "read /proc/PID/task/PID/children: it is missing (CONFIG_PROC_CHILDREN)") from None


def socket_bytes(proc: int) -> int:
    """The most that one socket can hold. A message is sent while there is less than a full buffer, and can be one."""
    return 2 * int(read(proc, "sys/net/core/wmem_default") or 2**18)


def kills_for_memory(proc: int) -> int:
    """How many processes the kernel has killed so far because the machine had no memory left."""
    lines = read(proc, "vmstat").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(b"oom_kill ")), 0)


def read(proc: int, path: str) -> bytes:
    """Empty: the process has ended, or this cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY, dir_fd=proc)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 2**16)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _kilobytes(text: bytes, *names: bytes) -> int:
    """Of the lines that begin so, in bytes."""
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(names))


def _stat(text: bytes) -> list[bytes]:
    return text.rpartition(b")")[2].split()  # a name may hold anything, also spaces and brackets
