"""The filter's decisions, by a small interpreter of its instructions; and what a tree of processes is seen to use."""

import errno
import mmap
import os
import re
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from burnish.sandbox import Limits
from burnish.sandbox.jail import linux, seccomp
from burnish.sandbox.jail.cores import Cores
from burnish.sandbox.jail.launch import Tree
from burnish.sandbox.jail.supervisor import Running
from burnish.sandbox.jail.usage import TICKS, Usage, _ProcessUsage, _Task, check_readable, socket_bytes, waited

ALLOWED, KILLED = "allowed", "killed"
HEADERS = {
    "x86_64": ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"],
    "aarch64": ["/usr/include/asm-generic/unistd.h"],
}


def decision(
    machine: str, call: int, first: int = 0, architecture: int | None = None, third: int = 0, fourth: int = 0
) -> str | int:
    """`allowed`, `killed` or the errno that the call gets, by its arguments."""
    audit = seccomp.ARCHITECTURES[machine] if architecture is None else architecture
    seen = struct.pack("<IIQQQQQ", call, audit, 0, first, 0, third, fourth)
    program = list(struct.iter_unpack("HBBI", seccomp.build(machine)))
    register = at = 0
    while True:
        code, then, otherwise, value = program[at]
        at += 1
        if code == seccomp.RETURN:
            break
        if code == seccomp.LOAD:
            (register,) = struct.unpack_from("<I", seen, value)
        else:
            jumps = {seccomp.JUMP_EQUAL: register == value, seccomp.JUMP_GREATER: register > value}
            at += then if (jumps | {seccomp.JUMP_ANY_BIT: bool(register & value)})[code] else otherwise
    if value & 0xFFFF0000 == seccomp.ERRNO:
        return value & 0xFFFF
    return {seccomp.ALLOW: ALLOWED, seccomp.KILL: KILLED}[value]


THREAD = 0x3D0F00  # what pthread_create asks of clone
CASES = [  # name, (x86_64, aarch64), first argument, decision
    ("kill", (62, 129), 0, ALLOWED),
    ("ptrace", (101, 117), 0, errno.EPERM),
    ("mount", (165, 40), 0, errno.EPERM),
    ("unshare", (272, 97), 0, errno.EPERM),
    ("memfd_create", (319, 279), 0, errno.EPERM),
    ("io_uring_setup", (425, 425), 0, errno.EPERM),
    ("clone of a thread", seccomp.CLONE, THREAD, ALLOWED),
    ("clone of a process", seccomp.CLONE, 17, ALLOWED),
    ("clone with a user namespace", seccomp.CLONE, linux.CLONE_NEWUSER | 17, errno.EPERM),
    ("clone with a network namespace", seccomp.CLONE, linux.CLONE_NEWNET | 17, errno.EPERM),
    ("clone3", seccomp.CLONE3, 0, errno.ENOSYS),
    ("a socket of this machine", seccomp.SOCKET, 1, ALLOWED),
    ("an internet socket", seccomp.SOCKET, 2, errno.EPERM),
    ("a netlink socket", seccomp.SOCKET, 16, errno.EPERM),
    ("a pair of sockets", seccomp.SOCKETPAIR, 1, ALLOWED),
    ("its own limits", seccomp.PRLIMIT, 0, ALLOWED),
    ("another's limits", seccomp.PRLIMIT, 1, errno.EPERM),
    ("sync", (162, 81), 0, errno.EPERM),
    ("vmsplice", (278, 75), 0, errno.EPERM),
    ("io_setup", (206, 0), 0, errno.EPERM),
    ("setsid, which says that it worked", seccomp.SETSID, 0, 0),
    ("a call that is newer than the table", (seccomp.NEWEST + 1,) * 2, 0, errno.ENOSYS),
    ("a call of the x32 kind", (0x40000000,) * 2, 0, errno.ENOSYS),
]


@pytest.mark.parametrize("column", range(2), ids=seccomp.ARCHITECTURES)
@pytest.mark.parametrize(("calls", "argument", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_decisions(column, calls, argument, expected):
    machine = list(seccomp.ARCHITECTURES)[column]
    assert decision(machine, calls[column], argument) == expected


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
def test_every_call_of_the_table_is_refused_and_no_other_by_its_number(machine):
    column = list(seccomp.ARCHITECTURES).index(machine)
    refused = {numbers[column] for numbers in seccomp.REFUSED.values()} - {None}
    by_argument = {table[column] for table in (seccomp.SOCKET, seccomp.SOCKETPAIR)}  # family 0 is none
    for call in range(seccomp.NEWEST + 1):
        expected = errno.EPERM if call in refused | by_argument else ALLOWED
        expected = {seccomp.CLONE3[column]: errno.ENOSYS, seccomp.SETSID[column]: 0}.get(call, expected)
        assert decision(machine, call) == expected, call


@pytest.mark.parametrize(("machine", "headers"), HEADERS.items(), ids=HEADERS)
def test_the_numbers_are_those_of_the_kernels_headers(machine, headers):
    installed = [path for path in map(Path, headers) if path.exists()]
    if not installed:
        pytest.skip("the kernel's headers are not installed")
    pattern = re.compile(r"^#define __NR(?:3264)?_(\w+) (\d+)$", re.MULTILINE)
    numbers = {name: int(number) for name, number in pattern.findall(installed[0].read_text())}
    named = {name: getattr(seccomp, name.upper()) for name in ("clone", "clone3", "socket", "socketpair", "setsockopt")}
    named |= {"setsid": seccomp.SETSID, "mmap": seccomp.MMAP, "prlimit64": seccomp.PRLIMIT, **seccomp.REFUSED}
    column = list(seccomp.ARCHITECTURES).index(machine)
    ours = {name: pair[column] for name, pair in named.items() if name in numbers}
    assert len(ours) > 80 and ours == {name: numbers[name] for name in ours}


def test_other_decisions():
    assert decision("x86_64", 0, architecture=0x40000003) == KILLED  # the 32-bit entry of the same machine
    for machine, call in zip(seccomp.ARCHITECTURES, seccomp.SETSOCKOPT, strict=True):
        assert decision(machine, call, third=socket.SO_SNDBUF) == errno.EPERM, "sockets hold no more than usual"
        assert decision(machine, call, third=socket.SO_REUSEADDR) == ALLOWED


@pytest.mark.parametrize("column", range(2), ids=seccomp.ARCHITECTURES)
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (mmap.MAP_SHARED, ALLOWED),  # of a file
        (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, ALLOWED),
        (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x20000, ALLOWED),
        (mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, errno.EPERM),
        (0x3 | mmap.MAP_ANONYMOUS, errno.EPERM),  # MAP_SHARED_VALIDATE
        (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | seccomp.MAP_HUGETLB, errno.EPERM),
        (mmap.MAP_SHARED | seccomp.MAP_HUGETLB, errno.EPERM),
    ],
)
def test_memory_is_mapped_only_where_it_is_counted(column, flags, expected):
    assert decision(list(seccomp.ARCHITECTURES)[column], seccomp.MMAP[column], fourth=flags) == expected


#: Waits for a line before it leaves. Its children: one that takes memory, one that computes, one with threads.
TREE = """
import os, sys, threading, time
def child(work):
    if not os.fork():
        work()
        os.write(1, b"ready\\n")
        sys.stdin.read()
        os._exit(0)
def compute():
    while time.process_time() < 0.3: pass
def threads():
    for _ in range(3): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
kept = []
child(lambda: kept.append(b"x" * 2**26))
child(compute)
child(threads)
sys.stdin.read()
"""


@pytest.fixture
def usage() -> Iterator[Usage]:
    tree = subprocess.Popen([sys.executable, "-c", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert tree.stdin is not None and tree.stdout is not None
    for _ in range(3):
        assert tree.stdout.readline() == b"ready\n"
    proc = os.open("/proc", os.O_RDONLY)
    yield Usage(proc, tree.pid)
    os.close(proc)
    tree.stdin.close()
    tree.wait()
    tree.stdout.close()


def test_the_whole_tree_counts_but_for_its_first_process(usage):
    usage.look(time.monotonic())
    assert len(usage.processes()) == 4 and usage.processes()[0] == usage.first
    assert usage.tasks == 6  # three processes, three more threads
    assert 2**26 < usage.memory < 2**28
    assert 2**26 <= usage.exact_memory() < usage.memory, "what is shared is shared out"
    assert 0.25 < usage.computed < 5
    before = usage.computed
    usage.first = usage.processes()[1]  # it has no children
    usage.look(time.monotonic())
    assert usage.tasks == 0 and usage.computed == before > 0, "what has ended still counts"
    gone = Usage(usage.proc, 2**30)
    gone.look(time.monotonic())
    assert (gone.tasks, gone.memory, gone.computed, gone.processes()) == (0, 0, 0.0, [])


@pytest.mark.parametrize(
    ("computed", "queued", "passed", "expected"),
    [
        (1.0, 0.0, 5.0, 0.0),  # it had a core whenever it wanted one
        (1.0, 3.0, 4.0, 3.0),  # one task that always wanted one
        (1.0, 1.0, 4.0, 1.0),  # one task that slept for half of the time
        (2.0, 6.0, 2.0, 1.5),  # four tasks on one core: three quarters of what they asked for
        (0.0, 0.0, 1.0, 0.0),
        (1.0, -0.5, 1.0, -0.5),  # half a second had been said too much
        (1.0, -5.0, 1.0, -1.0),  # by five tasks, in one second
    ],
)
def test_waiting_for_a_busy_core(computed, queued, passed, expected):
    assert waited(passed, computed, queued) == expected


#: Of one process: state, seconds computed, seconds queued, when it started; at one look after another, at 0, 1, 2 … s.
READY, ASLEEP = "R", "S"
WAITS = {
    "a wait that still goes on": ([(READY, 0.1, 0.0, 0), (READY, 0.1, 0.0, 0), (READY, 0.1, 0.0, 0)], 2.0),
    "a wait that is over": ([(READY, 0.1, 0.0, 0), (READY, 0.1, 0.0, 0), (ASLEEP, 0.2, 1.5, 0)], 1.5),
    "sleep that looked like waiting": ([(READY, 0.1, 0.0, 0), (READY, 0.2, 0.0, 0), (ASLEEP, 0.2, 0.0, 0)], 0.0),
    "a new process that waits": ([None, (READY, 0.0, 0.0, 0.5)], 0.5),
    "an ended process that had waited": ([(READY, 0.1, 0.0, 0), (READY, 0.1, 0.0, 0), None], 1.0 + 10 / 11),
}


@pytest.mark.parametrize(("looks", "expected"), WAITS.values(), ids=WAITS)
def test_waiting_is_counted_before_it_is_over(looks, expected, monkeypatch, tmp_path):
    usage = Usage(os.open(tmp_path, os.O_RDONLY), 1)
    for second, look in enumerate(looks):
        monkeypatch.setattr(time, "clock_gettime", lambda clock, second=second: float(second))
        write_tree(tmp_path, look)
        usage.look(float(second))
    os.close(usage.proc)
    assert usage.waited == pytest.approx(expected, abs=0.02)


def write_tree(proc: Path, child: tuple[str, float, float, float] | None) -> None:
    """As /proc would show it: process 1 with the child 2, or alone."""
    shutil.rmtree(proc / "1", ignore_errors=True)
    shutil.rmtree(proc / "2", ignore_errors=True)
    for pid, (state, computed, queued, start) in {1: ("S", 0.0, 0.0, 0), 2: child}.items() if child else {}.items():
        folder = proc / str(pid) / "task" / str(pid)
        folder.mkdir(parents=True)
        words = ["0"] * 22
        words[0], words[17], words[19] = state, "1", str(int(start * TICKS))
        (proc / str(pid) / "stat").write_text(f"{pid} (a name) {' '.join(words)}")
        (folder / "children").write_text("2" if pid == 1 else "")
        (folder / "schedstat").write_text(f"{int(computed * 1e9)} {int(queued * 1e9)} 1")


def test_waiting_counts_for_what_was_not_seen(usage, monkeypatch):
    """Of what is seen, each second of computing has waited for three: so has what a parent knows of its children."""
    monkeypatch.setattr(Usage, "_schedule", lambda self, process, task, passed: _Task(1.0, 3.0))
    usage.look(0.0)
    task = _ProcessUsage(2, 2, usage.first, [b"S"] + [b"0"] * 30, [2], 1.0, 4.0, 0)
    monkeypatch.setattr(Usage, "_walk", lambda self: [task])
    usage.computed, usage.waited, usage._alive, usage._seen = 1.0, 0.0, {2: _Task(1.0, 3.0)}, _Task(1.0, 3.0)
    usage.look(100.0)
    assert usage.computed == 5.0 and usage.waited == pytest.approx(12.0)


def test_waiting_is_seen_where_there_is_some():
    """Two processes that compute on one core: each waits for half of the time."""
    core = min(os.sched_getaffinity(0))
    command = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True: pass"]
    both = [subprocess.Popen(command) for _ in range(2)]
    proc = os.open("/proc", os.O_RDONLY)
    usage = Usage(proc, os.getpid())
    begin = time.monotonic()
    usage.look(begin)
    usage.waited = 0.0  # there was no look before
    while usage.waited < 0.2 and time.monotonic() - begin < 30:
        time.sleep(0.05)
        usage.look(time.monotonic())
    for process in both:
        process.kill()
        process.wait()
    os.close(proc)
    assert usage.waited >= 0.2


def test_one_address_space_counts_once(usage):
    """As a child that vfork has made has its parent's."""
    source = """
import ctypes, mmap, os, sys
kept = b"x" * 2**26
libc = ctypes.CDLL(None)
stack = mmap.mmap(-1, 2**20)
top = ctypes.addressof(ctypes.c_char.from_buffer(stack)) + 2**20
libc.clone(ctypes.cast(libc.pause, ctypes.c_void_p), ctypes.c_void_p(top), 0x100 | 17, None)
print("ready", flush=True)
sys.stdin.read()
"""
    tree = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert tree.stdin is not None and tree.stdout is not None and tree.stdout.readline() == b"ready\n"
    both = Usage(usage.proc, os.getpid())
    mine = {process.pid: process.parent for process in both._walk()}
    child_pid = next(pid for pid, parent in mine.items() if parent == tree.pid)
    first, child = (process for process in both._walk() if process.pid in (tree.pid, child_pid))
    alone = both._proportional(first)
    both._walk = lambda: [first, child]  # type: ignore[method-assign]
    both.look(0.0)
    assert both.memory > 2 * 2**26 and both.exact_memory() < 1.2 * alone
    os.kill(child_pid, 9)
    tree.communicate()


def test_a_kernel_that_does_not_tell_is_refused(tmp_path):
    folder = tmp_path / str(os.getpid()) / "task" / str(os.getpid())
    folder.mkdir(parents=True)
    (folder / "schedstat").write_text("0 0 0\n")
    proc = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="CONFIG_SCHED_INFO"):
        check_readable(proc)
    (folder / "schedstat").write_text("1 0 1\n")
    with pytest.raises(OSError, match="CONFIG_PROC_CHILDREN"):
        check_readable(proc)
    os.close(proc)


@pytest.fixture
def running() -> Iterator[tuple[Running, socket.socket]]:
    """A program of which nothing is real, with two cores, and the end that its first process would hold."""
    channel, first = socket.socketpair()
    channel.setblocking(False)
    out, err = os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_RDONLY)
    cores = SimpleNamespace(count=2.0, counts=[2.0], idle=lambda now: [0.0])
    proc = os.open("/proc", os.O_RDONLY)
    launcher = SimpleNamespace(proc=proc, isolated=True, end=lambda tree: None, socket_bytes=0, cores=cores)
    running = Running(1, Limits(seconds=1.0), launcher, Tree(os.getpid(), channel, out, err, ""))  # type: ignore[arg-type]
    running._selector = selectors.DefaultSelector()
    yield running, first
    running.tree.close()
    first.close()
    running._selector.close()
    os.close(proc)


def test_one_that_ended_before_a_late_look_is_not_timed_out(running):
    """The supervisor may come late, with the end of the program unread: its clock stopped when it ended."""
    program, first = running
    begin = time.monotonic()
    first.sendall(b'{"started": %r}\n' % begin)
    program._hear()
    first.sendall(b'{"exit_code": 0, "ended": %r}\n' % (begin + 0.1))
    program.check(begin + 100, crowd=1)
    assert (program.verdict, program.exit_code) == (None, 0)


@pytest.mark.parametrize(
    ("idle", "computed", "by_first", "waited", "spent"),
    [
        (20.0, 0.0, 0.0, 9.9, 10.0),  # the cores were idle, whatever its tasks seem to have waited
        (10.0, 0.0, 0.0, 9.9, 5.0),  # others had half of them
        (0.0, 0.5, 0.0, 9.5, 0.5),  # others had all, and it a little
        (0.0, 10.0, 0.0, 9.5, 10.0),  # it had half of them: its tasks waited for each other
        (0.0, 2.0, 8.0, 9.5, 5.0),  # also where its first process was busy with orphans
        (0.0, 0.5, 0.0, 3.0, 7.0),
        (21.0, 0.0, 0.0, 9.9, 10.0),
    ],
)
def test_only_what_runs_outside_makes_a_program_wait(running, monkeypatch, idle, computed, by_first, waited, spent):
    """In ten seconds of two cores."""
    program, _ = running
    program.begin, program._idle_before = 100.0, [0.0]
    monkeypatch.setattr(Usage, "look", lambda self, now: None)
    program.launcher.cores.idle = lambda now: [idle]
    program.usage.computed, program.usage.computed_by_first, program.usage.waited = computed, by_first, waited
    assert program._look(110.0, 110.0) == 10.0 and program.spent == pytest.approx(spent)


def test_waiting_for_the_cores_of_a_machine_and_for_a_groups_quota_both_count(running, monkeypatch):
    """Of eight cores that others kept busy for 5 of the 10 s, a group was granted two, and used one."""
    program, _ = running
    program.begin, program._idle_before, program.usage.waited = 100.0, [0.0, 0.0], 9.9
    monkeypatch.setattr(Usage, "look", lambda self, now: None)
    cores = program.launcher.cores
    for idle, spent in (([40.0, 20.0], 5.0), ([80.0, 10.0], 5.0), ([60.0, 15.0], 5.0), ([80.0, 20.0], 10.0)):
        cores.counts, cores.idle = [8.0, 2.0], lambda now, idle=idle: idle
        program._look(110.0, 110.0)
        assert program.spent == pytest.approx(spent)


def test_cores_are_idle_where_nothing_runs(tmp_path):
    """Of the cores that programs may use, as the kernel counts; read at most every few hundredths of a second."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/\n")
    mine = sorted(os.sched_getaffinity(0))
    lines = [f"cpu{number} 1 2 3 {4 * TICKS} {TICKS} 6 7 0 0 0" for number in (*mine, mine[-1] + 1)]
    (tmp_path / "stat").write_text("\n".join(["cpu 0 0 0 0 0 0", *lines, "intr 5 0 0", ""]))
    proc = os.open(tmp_path, os.O_RDONLY)
    cores = Cores(proc, str(tmp_path / "none"))
    assert cores.counts == [len(mine)] and cores.idle(1.0) == [5.0 * len(mine)]
    (tmp_path / "stat").write_text(f"cpu{mine[0]} 0 0 0 0 0 0\n")
    assert cores.idle(1.001)[0] > 0 and cores.idle(2.0) == [0.0]
    os.close(proc)


@pytest.mark.parametrize(
    ("membership", "files", "idle"),
    [
        ("0::/job/step", {"job/cpu.max": "50000 100000", "job/cpu.stat": "usage_usec 2000000\nuser_usec 5"}, 3.0),
        ("0::/elsewhere", {"cpu.max": "50000 100000", "cpu.stat": "usage_usec 1000000"}, 4.0),  # in a container
        (
            "4:memory:/x\n3:cpu,cpuacct:/job",
            {
                "cpu,cpuacct/job/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
                "cpu,cpuacct/job/cpuacct.usage": "2000000000",
            },
            3.0,
        ),
        ("0::/", {"cpu.max": "50000 100000"}, 0.0),  # it does not say what is used: then none is known to be idle
    ],
    ids=["group", "container", "version 1", "unknown use"],
)
def test_a_container_has_the_cores_that_its_group_grants(tmp_path, membership, files, idle):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(membership + "\n")
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text + "\n")
    proc = os.open(tmp_path, os.O_RDONLY)
    cores = Cores(proc, str(tmp_path / "groups"))
    assert cores.count == 0.5 and cores.idle(10.0) == pytest.approx([0.0, idle])
    os.close(proc)


@pytest.mark.parametrize("quota", ["max 100000", f"{10**9} 100000", ""])
def test_a_group_that_grants_all_cores_or_cannot_be_read_is_none(tmp_path, quota):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("2:cpu:/x\n1:name=systemd:/\n0::/\n")
    (tmp_path / "cpu.max").write_text(quota)
    proc = os.open(tmp_path, os.O_RDONLY)
    assert Cores(proc, str(tmp_path)).count == len(os.sched_getaffinity(0))
    os.close(proc)


def test_what_is_in_no_page_of_a_process_counts_as_memory(tmp_path):
    """Page tables, swapped pages, and what its sockets can hold, also those that no process has open."""
    write_tree(tmp_path, (ASLEEP, 0.1, 0.0, 0))
    (tmp_path / "2/status").write_text("Name:\tVmPTE: 9 kB\nVmPTE:\t    2048 kB\nVmSwap:\t 1024 kB\nSigIgn:\t0\n")
    (tmp_path / "1/net").mkdir()
    (tmp_path / "1/net/sockstat").write_text("sockets: used 5\nTCP: inuse 0 orphan 0\n")
    (tmp_path / "sys/net/core").mkdir(parents=True)
    (tmp_path / "sys/net/core/wmem_default").write_text("1000\n")
    proc = os.open(tmp_path, os.O_RDONLY)
    usage = Usage(proc, 1, socket_bytes(proc))
    usage.look(1.0)
    assert usage.memory == usage.exact_memory() == 3 * 2**20 + 5 * 2 * 1000
    (tmp_path / "2/smaps_rollup").write_text("Rss: 9 kB\nPss:    4 kB\nPss_Dirty: 9 kB\nSwapPss: 9 kB\n")
    assert usage.exact_memory() == 3 * 2**20 + 5 * 2 * 1000 + 4096
    os.close(proc)


def test_no_waiting_counts_once_children_are_discarded(tmp_path):
    """Where a process ignores SIGCHLD, what its children compute is added nowhere, and would look like others' work."""
    usage = Usage(os.open(tmp_path, os.O_RDONLY), 1)
    for second, mask in enumerate([0, 0, 1 << (signal.SIGCHLD - 1) | 1, 0]):
        write_tree(tmp_path, (READY, 0.1, 1.0 * second, 0))
        (tmp_path / "2/status").write_text(f"SigBlk:\t0\nSigIgn:\t{mask:016x}\n")
        usage.look(float(second))
        assert usage.waited == pytest.approx(min(second, 1), abs=0.02)
    os.close(usage.proc)
