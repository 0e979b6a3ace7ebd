"""The cores that programs run on, and how long they were idle: what bounds a program's waiting for a busy core.

A task waits only while all cores are busy, and who else keeps them busy is not the program's to say. So of a program
that has taken `computed` seconds of `cores` cores, no task can have waited for others longer than
(cores * seconds - idle - computed) / cores. Where a control group grants less than the cores, as in a container, a task
also waits when the group has used what it grants: as long again, by the group's grant and use.
"""

import os
from contextlib import suppress
from pathlib import Path

from burnish.sandbox.jail.usage import TICKS, read

CONTROL_GROUPS = "/sys/fs/cgroup"
FRESH_SECONDS = 0.02  # /proc/stat is long on a large machine


class Cores:
    """Made before the view of programs is entered, which hides the control groups. `proc`: an open /proc."""

    def __init__(self, proc: int, groups: str = CONTROL_GROUPS):
        self._proc = proc
        self._names = {b"cpu%d" % number for number in os.sched_getaffinity(0)}
        self.counts = [float(len(self._names))]  # of the machine and, where it is less, what a control group grants
        self._used: int | None = None  # what tells how much the group has used
        quota, usage = min(_quotas(read(proc, "self/cgroup").decode(), groups), default=(float("inf"), ""))
        if quota < self.counts[0]:
            self.counts.append(quota)
            with suppress(OSError):
                self._used = os.open(usage, os.O_RDONLY)
        self.count = self.counts[-1]
        self._read_at, self._idle = float("-inf"), [0.0] * len(self.counts)

    def idle(self, now: float) -> list[float]:
        """Of each of `counts`: seconds until `now`, added up over its cores; from any start."""
        if now - self._read_at >= FRESH_SECONDS:
            self._read_at = now
            lines = map(bytes.split, read(self._proc, "stat").splitlines())
            ours = [line for line in lines if len(line) > 5 and line[0] in self._names]
            self._idle = [sum(int(line[4]) + int(line[5]) for line in ours) / TICKS, *self._idle[1:]]
            if self._used is not None:
                with suppress(OSError):  # the group is gone
                    self._idle[1] = self.count * now - _seconds(os.pread(self._used, 4096, 0))
        return self._idle


def _quotas(membership: str, groups: str) -> list[tuple[float, str]]:
    """(cores, the file that says how much is used) of each group that this process is in and that grants only so much.
    `membership`: /proc/self/cgroup. In a container, its own group may be found where the topmost is elsewhere."""
    found = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        names, usage = ["cpu.max"], "cpu.stat"
        if controllers:
            names, usage = ["cpu.cfs_quota_us", "cpu.cfs_period_us"], "cpuacct.usage"
        inner = Path(path.strip("/"))
        for group in (inner, *inner.parents):
            folder = Path(groups, controllers, group)
            with suppress(OSError, ValueError):  # there is none, or no limit ("max")
                quota, period = map(int, " ".join((folder / name).read_text() for name in names).split())
                if quota > 0:
                    found.append((quota / period, str(folder / usage)))
    return found


def _seconds(usage: bytes) -> float:
    words = usage.split()
    return int(words[1]) / 1e6 if words[0] == b"usage_usec" else int(words[0]) / 1e9
