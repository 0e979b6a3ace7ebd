"""The filter's decisions, for both architectures: it is run here by a small interpreter of its instructions."""

import errno
import struct

import pytest

from burnish.sandbox.jail import linux, seccomp

ALLOWED, KILLED = "allowed", "killed"


def decision(machine: str, call: int, first_argument: int = 0, architecture: int | None = None) -> str | int:
    """`allowed`, `killed` or the errno that the call gets."""
    audit = seccomp.ARCHITECTURES[machine] if architecture is None else architecture
    seen = struct.pack("<IIQQ", call, audit, 0, first_argument)
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
            holds = {
                seccomp.JUMP_EQUAL: register == value,
                seccomp.JUMP_GREATER: register > value,
                seccomp.JUMP_ANY_BIT: bool(register & value),
            }[code]
            at += then if holds else otherwise
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
        assert decision(machine, call) == (errno.ENOSYS if call == seccomp.CLONE3[column] else expected), call


def test_calls_of_another_architecture_end_the_program():
    assert decision("x86_64", 0, architecture=0x40000003) == KILLED  # the 32-bit entry of the same machine
