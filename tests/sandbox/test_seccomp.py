"""The filter's decisions, for both architectures: it is run here by a small interpreter of its instructions."""

import errno
import re
import socket
import struct
from pathlib import Path

import pytest

from burnish.sandbox.jail import linux, seccomp

ALLOWED, KILLED = "allowed", "killed"
HEADERS = {
    "x86_64": ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"],
    "aarch64": ["/usr/include/asm-generic/unistd.h"],
}


def decision(machine: str, call: int, first: int = 0, architecture: int | None = None, third: int = 0) -> str | int:
    """`allowed`, `killed` or the errno that the call gets, by its first and third argument."""
    audit = seccomp.ARCHITECTURES[machine] if architecture is None else architecture
    seen = struct.pack("<IIQQQQ", call, audit, 0, first, 0, third)
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
    ("read", (0, 63), 0, ALLOWED),
    ("execve", (59, 221), 0, ALLOWED),
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
    named |= {"setsid": seccomp.SETSID, "prlimit64": seccomp.PRLIMIT, **seccomp.REFUSED}
    column = list(seccomp.ARCHITECTURES).index(machine)
    ours = {name: pair[column] for name, pair in named.items() if name in numbers}
    assert len(ours) > 80 and ours == {name: numbers[name] for name in ours}


def test_other_decisions():
    assert decision("x86_64", 0, architecture=0x40000003) == KILLED  # the 32-bit entry of the same machine
    for machine, call in zip(seccomp.ARCHITECTURES, seccomp.SETSOCKOPT, strict=True):
        assert decision(machine, call, third=socket.SO_SNDBUF) == errno.EPERM, "sockets hold no more than usual"
        assert decision(machine, call, third=socket.SO_REUSEADDR) == ALLOWED
