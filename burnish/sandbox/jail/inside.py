"""What happens in a program's new process tree: its first process sets everything up, starts the program, and waits.

The first process is the parent of all orphans of the tree, and dies with the supervisor. Isolated, it is number 1 of a
process namespace: nothing in there can signal it, and the kernel ends all the others with it. It tells the supervisor
on `channel`, a line of JSON each: {"exit_code", "ended": when}, or {"failed": why, "refused": for good}; the program's
own process says {"started": when}. Then it waits to be ended, so that the supervisor can still see what the program,
now a zombie, has used.
"""

import json
import os
import resource
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from burnish.sandbox import Limits
from burnish.sandbox.jail import linux, seccomp, users, view

NICENESS = 19  # the supervisor and training go first
SPARE_ADDRESSES = 2**30  # bytes; what a process reserves is more than what it uses, and use is what is limited
OPEN_FILES = 64  # each can be a socket that holds 200 kB, which no other limit sees
PENDING_SIGNALS = 256  # and timers
NAME = "main.py"


@dataclass(frozen=True)
class JailedProgram:
    """A program as its new process gets it. `stdin`, `stdout` and `stderr` are open descriptors."""

    source: str
    limits: Limits
    executable: str
    seccomp: bytes | None  # None: this machine takes no filter
    folder: str
    processes: int  # as RLIMIT_NPROC counts them
    uid: int | None = None  # without a namespace: whom to become
    stdin: int = -1
    stdout: int = -1
    stderr: int = -1


def isolated(job: JailedProgram, channel: socket.socket, alone: bool) -> NoReturn:
    """The first process, in new namespaces. Its supervisor says who it is and then sends one byte. `alone`: leave the
    groups of the user outside too, which only root may."""
    try:
        _keep_only(job, channel)
        if not channel.recv(1):
            os._exit(1)
        if alone:
            os.setgroups([])
        os.setresgid(users.INSIDE, users.INSIDE, users.INSIDE)
        os.setresuid(users.INSIDE, users.INSIDE, users.INSIDE)
        options = f"size={job.limits.disk_mb}m,nr_inodes={1024 + 64 * job.limits.disk_mb},mode=0700"
        linux.mount("tmpfs", view.PRIVATE, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
        socket.sethostname("sandbox")
        linux.drop_capabilities()
        linux.prctl("no new rights", linux.PR_SET_NO_NEW_PRIVS, 1)
    except BaseException as error:  # noqa: BLE001  this process ends here, and its supervisor must know why
        _fail(channel, error, refused=linux.refuses(error))
    _start_and_wait(job, channel)


def unsafe(job: JailedProgram, channel: socket.socket) -> NoReturn:
    """The first process where nothing is isolated."""
    try:
        _keep_only(job, channel)
        linux.prctl("no new rights", linux.PR_SET_NO_NEW_PRIVS, 1)
        linux.prctl("adopt orphans", linux.PR_SET_CHILD_SUBREAPER, 1)
        if job.uid is not None:
            users.become(job.uid)
    except BaseException as error:  # noqa: BLE001  as above
        _fail(channel, error)
    _start_and_wait(job, channel)


def _keep_only(job: JailedProgram, channel: socket.socket) -> None:
    """Leave behind the supervisor's signals, process group and open files. Not its session: many kernels give each one
    an equal share of the cores, and then niceness would count for nothing between the supervisor and its programs."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        with suppress(OSError):  # two cannot be ignored
            signal.signal(number, signal.SIG_DFL)
    os.setpgid(0, 0)
    kept = sorted({job.stdin, job.stdout, job.stderr, channel.fileno()})
    for below, above in zip([-1, *kept], [*kept, os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(below + 1, above)


def _start_and_wait(job: JailedProgram, channel: socket.socket) -> NoReturn:
    try:
        os.chdir(job.folder)
        with open(NAME, "xb") as file:
            file.write(job.source.encode("utf-8", "surrogatepass"))
        linux.prctl("die with the supervisor", linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        program = os.fork()
        if program == 0:
            _become_program(job, channel)
        for descriptor in (job.stdin, job.stdout, job.stderr):
            os.close(descriptor)
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            assert ended is not None
            if ended.si_pid == program:
                exit_code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                _send(channel, exit_code=exit_code, ended=time.monotonic())
                channel.recv(1)  # until this process is killed
            os.waitpid(ended.si_pid, 0)
    except BaseException as error:  # noqa: BLE001  as in `isolated`
        _fail(channel, error)


def _become_program(job: JailedProgram, channel: socket.socket) -> NoReturn:
    linux.prctl("die with the first process", linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    _send(channel, started=time.monotonic())  # fails where the supervisor died before its own death was a signal
    os.setpgid(0, 0)
    os.nice(NICENESS)
    for place, descriptor in enumerate((job.stdin, job.stdout, job.stderr)):
        os.dup2(descriptor, place)
    os.closerange(3, channel.fileno())
    os.closerange(channel.fileno() + 1, os.sysconf("SC_OPEN_MAX"))  # the channel itself closes when Python starts
    _limit(job.limits, job.processes)
    if job.seccomp is not None:
        seccomp.install(job.seccomp)
    # All of it. Sets have the same order in every run, so that a program's score is too.
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": job.folder, "TMPDIR": job.folder, "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "MALLOC_ARENA_MAX": "2",
        **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")},
    }  # fmt: skip
    # -P -s: no module is taken from the private folder or a home folder. Not -I: it would ignore the hash seed.
    arguments = [job.executable, "-P", "-s", "-B", os.path.join(job.folder, NAME)]
    os.execve(job.executable, arguments, environment)


def _limit(limits: Limits, processes: int) -> None:
    """What the kernel itself enforces, on each process; the supervisor watches the tree as a whole."""
    seconds = int(limits.seconds) + 2  # the supervisor is more exact, and should be first
    for what, most in {
        resource.RLIMIT_AS: limits.memory_mb * 2**20 + SPARE_ADDRESSES,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: limits.disk_mb * 2**20,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_CORE: 1,  # with 0, a program of the system that collects crashes would still be started
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: PENDING_SIGNALS,
    }.items():
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def _send(channel: socket.socket, **facts: object) -> None:
    channel.sendall(json.dumps(facts).encode() + b"\n")


def _fail(channel: socket.socket, error: BaseException, refused: bool = False) -> NoReturn:
    try:
        _send(channel, failed=linux.said(error), refused=refused)
    finally:
        os._exit(1)
