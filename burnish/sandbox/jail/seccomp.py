"""Which system calls a program may not make: a seccomp filter, written here as a classic BPF program.

What is refused reaches beyond the program's own processes, opens a way to more rights or to rarely used corners of the
kernel, or holds memory that no limit sees. It gets EPERM, as if it lacked the right. Calls newer than the table, and
clone3, whose flags a filter cannot read, do not exist (ENOSYS); calls of another architecture end the program. setsid
says that it worked and does nothing: many kernels give each session its own share of the cores.
"""

import ctypes
import errno
import socket
import struct

from burnish.sandbox.jail.linux import MACHINE, NAMESPACES, PR_SET_SECCOMP, prctl

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NEWEST = 467  # open_tree_attr; numbers above 423 are the same everywhere

#: name → number on x86_64, number on aarch64 (None: not there).
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "statmount": (457, 457), "listmount": (458, 458),
    "open_tree_attr": (467, 467), "unshare": (272, 97), "setns": (308, 268),
    # rarely used corners
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "fanotify_mark": (301, 263),
    "lookup_dcookie": (212, 18), "nfsservctl": (180, 42), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "acct": (163, 89), "syslog": (103, 116), "vhangup": (153, 58), "uselib": (134, None), "ustat": (136, None),
    "sysfs": (139, None), "_sysctl": (156, None), "modify_ldt": (154, None), "personality": (135, 92),
    "mbind": (237, 235), "set_mempolicy": (238, 237), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "set_mempolicy_home_node": (450, 450), "landlock_create_ruleset": (444, 444),
    # the machine
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "iopl": (172, None), "ioperm": (173, None),
    # memory that is in nobody's address space
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "semget": (64, 190),
    "msgget": (68, 186), "mq_open": (240, 180), "vmsplice": (278, 75),
    # what all programs of a user have only so much of, and what all programs wait for
    "io_setup": (206, 0), "inotify_init": (253, None), "inotify_init1": (294, 26), "sync": (162, 81),
    "syncfs": (306, 267),
    # being last in the queue for a core, whose waiting is not counted
    "setpriority": (141, 140), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "sched_setaffinity": (203, 122), "ioprio_set": (251, 30),
}  # fmt: skip
CLONE, CLONE3, SOCKET, SOCKETPAIR, PRLIMIT = (56, 220), (435, 435), (41, 198), (53, 199), (302, 261)
SETSOCKOPT, SETSID, MMAP = (54, 208), (112, 157), (9, 222)
MAP_SHARED, MAP_ANONYMOUS, MAP_HUGETLB = 0x1, 0x20, 0x40000

LOAD, JUMP_EQUAL, JUMP_GREATER, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
#: Offsets in what a filter sees; of arguments, the low half on these machines.
CALL, ARCHITECTURE, FIRST_ARGUMENT, THIRD_ARGUMENT, FOURTH_ARGUMENT = 0, 4, 16, 32, 40
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
SECCOMP_MODE_FILTER = 2


def build(machine: str = MACHINE) -> bytes:
    """The filter for this machine. KeyError: there is none."""
    audit, column = ARCHITECTURES[machine], list(ARCHITECTURES).index(machine)
    program = [
        _step(LOAD, ARCHITECTURE), _step(JUMP_EQUAL, audit, then=1), _step(RETURN, KILL),
        _step(LOAD, CALL), _step(JUMP_GREATER, NEWEST, otherwise=1), _refuse(errno.ENOSYS),
    ]  # fmt: skip
    program += [_step(JUMP_EQUAL, CLONE3[column], otherwise=1), _refuse(errno.ENOSYS)]
    program += [_step(JUMP_EQUAL, SETSID[column], otherwise=1), _refuse(0)]
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            program += [_step(JUMP_EQUAL, number, otherwise=1), _refuse(errno.EPERM)]
    program += _by_argument(CLONE[column], _step(JUMP_ANY_BIT, NAMESPACES, otherwise=1))
    for number in (SOCKET[column], SOCKETPAIR[column]):
        program += _by_argument(number, _step(JUMP_EQUAL, socket.AF_UNIX, then=1))
    program += _by_argument(PRLIMIT[column], _step(JUMP_EQUAL, 0, then=1))  # its own limits, no other process's
    larger_buffers = _step(JUMP_EQUAL, socket.SO_SNDBUF, otherwise=1)  # memory that no limit sees
    program += _by_argument(SETSOCKOPT[column], larger_buffers, THIRD_ARGUMENT)
    program += [  # memory that stays while no process is seen to have it: shared without a file, and huge pages
        _step(JUMP_EQUAL, MMAP[column], otherwise=6), _step(LOAD, FOURTH_ARGUMENT),
        _step(JUMP_ANY_BIT, MAP_HUGETLB, then=2), _step(JUMP_ANY_BIT, MAP_SHARED, otherwise=2),
        _step(JUMP_ANY_BIT, MAP_ANONYMOUS, otherwise=1), _refuse(errno.EPERM), _step(RETURN, ALLOW),
    ]  # fmt: skip
    return b"".join([*program, _step(RETURN, ALLOW)])


def install(program: bytes) -> None:
    """For this process and all it starts. It must have given up new rights (PR_SET_NO_NEW_PRIVS) before."""
    steps = ctypes.create_string_buffer(program)
    header = struct.pack("HP", len(program) // 8, ctypes.addressof(steps))  # struct sock_fprog
    pointer = ctypes.create_string_buffer(header)
    prctl("seccomp", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(pointer))


def _by_argument(call: int, refuse_unless_jump: bytes, argument: int = FIRST_ARGUMENT) -> list[bytes]:
    """Refuse `call` by one of its arguments: the given step continues to the refusal, or jumps over it."""
    return [
        _step(JUMP_EQUAL, call, otherwise=4), _step(LOAD, argument), refuse_unless_jump,
        _refuse(errno.EPERM), _step(RETURN, ALLOW),
    ]  # fmt: skip


def _refuse(number: int) -> bytes:
    return _step(RETURN, ERRNO | number)


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """One instruction: what to do, and for a jump how many instructions to leave out if it holds and if not."""
    return struct.pack("HBBI", code, then, otherwise, value)
