"""The Linux system calls that Python lacks, through ctypes. All raise OSError that names the call."""

import ctypes
import errno
import os
import platform
import signal

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
NAMESPACES = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_NOATIME = 0x400
MS_NODIRATIME = 0x800
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_RELATIME = 0x200000
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_SET_SECCOMP = 22
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2
CAP_DAC_OVERRIDE = 1

#: Of the calls that have no function in libc.
NUMBERS = {
    "x86_64": {"clone": 56, "pivot_root": 155, "kcmp": 312},
    "aarch64": {"clone": 220, "pivot_root": 41, "kcmp": 272},
}
KCMP_VM = 1
#: Of errors that say that a machine does not permit something; others pass. 0 is our own.
LASTING = (0, errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.ENOSPC, errno.EUSERS)
MACHINE = platform.machine()

_libc = ctypes.CDLL(None, use_errno=True)
_libc_with_gil = ctypes.PyDLL(None, use_errno=True)


def said(error: BaseException) -> str:
    if not isinstance(error, OSError):
        return repr(error)
    text = error.strerror or str(error)
    return f"{error.filename}: {text}" if error.filename else text


def refuses(error: BaseException) -> bool:
    """Whether it says that this machine permits no isolation, now or later."""
    return isinstance(error, OSError) and error.errno in LASTING


def _checked(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int, what: str) -> None:
    _checked(what, _libc.unshare(ctypes.c_int(flags)))


def clone(flags: int) -> int:
    """As os.fork, with new namespaces: 0 in the child. Only for a process with one thread, and a child that execs or
    leaves soon: Python's own fork hooks do not run. The GIL is held throughout, as nobody would give it back."""
    number = NUMBERS[MACHINE]["clone"]
    zero = ctypes.c_long(0)
    arguments = ctypes.c_long(number), ctypes.c_ulong(flags | signal.SIGCHLD), zero, zero, zero, zero
    return _checked("new namespaces", _libc_with_gil.syscall(*arguments))


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    _checked(f"mount {target}", _libc.mount(*words, ctypes.c_ulong(flags), options.encode()))


def pivot_root(new: str, old: str) -> None:
    number = ctypes.c_long(NUMBERS[MACHINE]["pivot_root"])
    _checked("pivot_root", _libc.syscall(number, new.encode(), old.encode()))


def same_memory(pid: int, other: int) -> bool:
    """Whether two processes have one address space, as after vfork. False: not, or the kernel does not say."""
    words = (NUMBERS.get(MACHINE, {}).get("kcmp", -1), pid, other, KCMP_VM, 0, 0)
    return _libc.syscall(*map(ctypes.c_long, words)) == 0


def chroot(folder: str) -> None:
    _checked("chroot", _libc.chroot(folder.encode()))


def unmount(target: str) -> None:
    _checked(f"unmount {target}", _libc.umount2(target.encode(), ctypes.c_int(MNT_DETACH)))


def prctl(what: str, option: int, *values: int) -> None:
    padded = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    _checked(what, _libc.prctl(ctypes.c_int(option), *padded))


def drop_capabilities() -> None:
    """All of them, for good: also those that an exec could bring back. Who has none may not."""
    number = 0
    while _libc.prctl(ctypes.c_int(PR_CAPBSET_READ), ctypes.c_ulong(number), *[ctypes.c_ulong(0)] * 3) >= 0:
        prctl("drop capabilities", PR_CAPBSET_DROP, number)
        number += 1
    keep_capabilities(0)


def keep_capabilities(bits: int) -> None:
    """Those of the first 32, effective, permitted and inheritable, and no other."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, of which each set has two words; this process
    sets = (ctypes.c_uint32 * 6)(bits, bits, bits, 0, 0, 0)
    _checked("keep capabilities", _libc.capset(header, sets))
