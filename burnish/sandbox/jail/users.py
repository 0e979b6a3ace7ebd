"""Who a program is, and how many processes the kernel lets it have. Inside it is user 1000, alone in a user namespace.

Outside that is `nobody` where the supervisor is root and may choose, so that no file is the program's own. Otherwise it
is the user who trains, whose files the program does not see (view.py). It is never root: the kernel does not count
root's processes, so nothing would stop a fork bomb.
"""

import os
import re
import resource
from contextlib import suppress

from burnish.sandbox.jail import linux

INSIDE = 1000
NOBODY = 65534
SPARE_PROCESSES = 64  # where a user's processes are counted everywhere: for those that start while the program runs


def own_mounts() -> None:
    """Give this process a mount namespace: by right where it has it, otherwise through a user namespace.

    In a new user namespace a process keeps the ids that are written into the namespace's maps. All of them can be kept
    only by someone who stays outside and has that right; without it, one's own id can."""
    try:
        linux.unshare(linux.CLONE_NEWNS, "new mount namespace")
        return
    except PermissionError:
        pass
    uid, gid, me = os.geteuid(), os.getegid(), os.getpid()
    ready, go = os.pipe()
    outside = os.fork()
    if outside == 0:
        os.close(go)
        os.read(ready, 1)
        try:
            for kind in ("uid", "gid"):
                ids = "\n".join(f"{first} {first} {count}" for first, count in _ranges(kind))
                write(f"/proc/{me}/{kind}_map", ids)
        except OSError:
            os._exit(1)
        os._exit(0)
    try:
        linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS, "new user and mount namespaces")
    finally:
        os.close(go)
        os.close(ready)
        kept = os.waitpid(outside, 0)[1] == 0
    if not kept:
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"0 {uid} 1")
        write("/proc/self/gid_map", f"0 {gid} 1")


def outside_ids() -> tuple[int, int]:
    """The user and group that programs are, in this process's terms."""
    if os.geteuid() == 0 and all(
        any(first <= NOBODY < first + count for first, count in _ranges(kind)) for kind in ("uid", "gid")
    ):
        return NOBODY, NOBODY
    return os.geteuid(), os.getegid()


def check_counted() -> None:
    """OSError: the kernel lets this user, which programs will be, have any number of processes."""
    child = os.fork()
    if child == 0:
        try:
            linux.keep_capabilities(0)
            resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
            if os.fork() == 0:
                os._exit(0)
            os.wait()
            os._exit(1)
        except BlockingIOError:
            os._exit(0)
        finally:
            os._exit(2)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError(0, "limit processes: the kernel does not count those of root, which this user is outside")


def namespaces_count() -> bool:
    """Whether the kernel counts the processes of a user namespace by themselves: since Linux 5.14."""
    major, minor = (int(re.sub(r"\D.*", "", part)) for part in os.uname().release.split(".")[:2])
    return (major, minor) >= (5, 14)


def limit_among_others(proc: int, wanted: int, uid: int) -> int:
    """What RLIMIT_NPROC must be for `wanted` more, where all processes of a user count. `proc`: an open /proc."""
    threads = 0
    for name in os.listdir(proc):
        with suppress(OSError):  # it has just ended
            if name.isdigit() and os.stat(name, dir_fd=proc).st_uid == uid:
                threads += os.stat(f"{name}/task", dir_fd=proc).st_nlink - 2  # a folder for each
    return wanted + SPARE_PROCESSES + threads


def spare_ids() -> range:
    """Numbers that nobody has, for programs that get no namespace. Empty: this user may be no other."""
    if os.geteuid() != 0:
        return range(0)
    last = min(max(first + count for first, count in _ranges(kind)) for kind in ("uid", "gid"))
    top = min(last, 2**31) - 1000  # below those that systems use themselves
    return range(max(top - 10000, 1000), top)


def become(uid: int) -> None:
    """Another user, who can still read and write: Python may be in root's home. Other rights are dropped."""
    linux.prctl("keep capabilities", linux.PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    linux.keep_capabilities(1 << linux.CAP_DAC_OVERRIDE)
    linux.prctl("keep a capability", linux.PR_CAP_AMBIENT, linux.PR_CAP_AMBIENT_RAISE, linux.CAP_DAC_OVERRIDE)


def _ranges(kind: str) -> list[tuple[int, int]]:
    """(first, how many) of the ids there are in this process's namespace."""
    with open(f"/proc/self/{kind}_map") as file:
        return [(int(first), int(count)) for first, _, count in map(str.split, file)]


def write(path: str, text: str, folder: int | None = None) -> None:
    """In one piece, as the kernel wants it."""
    try:
        descriptor = os.open(path, os.O_WRONLY, dir_fd=folder)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise OSError(error.errno, f"write {os.path.basename(path)}: {error.strerror}") from None
