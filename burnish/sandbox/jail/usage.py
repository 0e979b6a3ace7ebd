"""What a program's whole tree uses, read from /proc outside of it: processor seconds, waiting, memory, processes.

A look at a tree costs three small reads for each process. What has ended since the last look counts with what was last
seen of it, or with what its parent was told when it waited for it, whichever is more.
"""

import os
from dataclasses import dataclass, field

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Usage:
    """Of the tree below the process `first`, which itself is not counted. `proc`: an open /proc."""

    proc: int
    first: int
    tasks: int = 0  # processes and threads alive
    memory: int = 0  # bytes; counts shared pages once for each process
    computed: float = 0.0  # seconds on a core
    queued: float = 0.0  # seconds ready to run while others had the core, added up over all tasks
    _alive: dict[int, tuple[float, float]] = field(default_factory=dict)  # task → (computed, queued)
    _ended: tuple[float, float] = (0.0, 0.0)

    def look(self) -> None:
        alive: dict[int, tuple[float, float]] = {}
        self.memory, told = 0, 0.0
        for process in self._walk():
            told += process.computed_by_ended_children
            if process.pid != self.first:
                told += process.computed
                self.memory += process.memory
                alive.update((task, self._schedule(process.pid, task)) for task in process.tasks)
        for task in self._alive.keys() - alive.keys():
            self._ended = _sum(self._ended, self._alive[task])
        self._alive, self.tasks = alive, len(alive)
        seen = self._ended
        for values in alive.values():
            seen = _sum(seen, values)
        self.computed, self.queued = max(self.computed, told, seen[0]), seen[1]

    def waited(self, elapsed: float) -> float:
        """How much of `elapsed` seconds the tree spent waiting for a busy core: exact for one task. For several, the
        share of the time they asked for that they did not get."""
        asked = self.computed + self.queued
        return min(self.queued, elapsed * self.queued / asked) if asked else 0.0

    def exact_memory(self) -> int:
        """With shared pages shared out among the processes; slow."""
        return sum(self._proportional(pid) for pid in self.processes() if pid != self.first)

    def processes(self) -> list[int]:
        """The ids of the tree, parents before their children, `first` included."""
        return [process.pid for process in self._walk()]

    def children(self) -> list[int]:
        """Of the first process."""
        process = self._process(self.first)
        return [child for task in process.tasks for child in self._children(self.first, task)] if process else []

    def _walk(self) -> list["_Process"]:
        found: dict[int, _Process] = {}
        pids = [self.first]
        for pid in pids:  # grows while it is walked; a process that loses its parent meanwhile is met twice
            process = self._process(pid) if pid not in found else None
            if process is not None:
                found[pid] = process
                for task in process.tasks:
                    pids += self._children(pid, task)
        return list(found.values())

    def _children(self, pid: int, task: int) -> list[int]:
        return [int(word) for word in self._read(f"{pid}/task/{task}/children").split()]

    def _process(self, pid: int) -> "_Process | None":
        text = self._read(f"{pid}/stat")
        if not text:
            return None
        words = text.rpartition(b")")[2].split()  # a name may hold anything, also spaces and brackets
        computed, by_children = int(words[11]) + int(words[12]), int(words[13]) + int(words[14])
        tasks = self._tasks(pid) if int(words[17]) != 1 else [pid]
        return _Process(pid, tasks, computed / TICKS, by_children / TICKS, int(words[21]) * PAGE)

    def _tasks(self, pid: int) -> list[int]:
        try:
            folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.proc)
        except OSError:
            return []
        try:
            return [int(name) for name in os.listdir(folder)]
        except OSError:
            return []
        finally:
            os.close(folder)

    def _schedule(self, pid: int, task: int) -> tuple[float, float]:
        words = self._read(f"{pid}/task/{task}/schedstat").split()
        return (int(words[0]) / 1e9, int(words[1]) / 1e9) if len(words) >= 2 else (0.0, 0.0)

    def _proportional(self, pid: int) -> int:
        for line in self._read(f"{pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
        process = self._process(pid)  # it has just ended, or we may not know more
        return process.memory if process else 0

    def _read(self, path: str) -> bytes:
        """Empty: the process is gone, or this cannot be read of it."""
        try:
            descriptor = os.open(path, os.O_RDONLY, dir_fd=self.proc)
        except OSError:
            return b""
        try:
            return os.read(descriptor, 2**16)
        except OSError:
            return b""
        finally:
            os.close(descriptor)


@dataclass(frozen=True)
class _Process:
    pid: int
    tasks: list[int]
    computed: float
    computed_by_ended_children: float
    memory: int


def _sum(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return a[0] + b[0], a[1] + b[1]
