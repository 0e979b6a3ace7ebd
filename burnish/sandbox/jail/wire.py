"""What passes between a training process and its supervisor. Imported on both sides.

A supervisor is started with a `Setting` as its only argument and one end of a socket pair. For each program it is sent
the limits as one fixed-size message with three descriptors: a socket for the answer, and the source and the standard
input as sealed memory files. So no program's text passes through the supervisor, callers share nothing but the sending
of that message, and closing the answer's socket is how a program is cancelled.
"""

import dataclasses
import json
import os
import struct
from collections.abc import Mapping

from burnish.sandbox.program import Limits, Outcome

#: The supervisor's program: burnish's folder goes last, so that nothing in there stands in for the standard library.
START = "import sys; sys.path.append(sys.argv[1]); from burnish.sandbox.jail.supervisor import main; main(sys.argv[2])"
LIMITS = struct.Struct(">dQQQQ")
SIZES = struct.Struct(">QQQ")  # of the facts, standard output and standard error that follow
DESCRIPTORS = 3


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a supervisor is told about the process that it serves."""

    parent: int  # its process id
    isolated: bool  # False: limits alone
    executable: str  # the Python that runs programs
    folders: tuple[str, ...]  # where that Python and its packages lie

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Setting":
        values = json.loads(text)
        return cls(**{**values, "folders": tuple(values["folders"])})


def pack_limits(limits: Limits) -> bytes:
    return LIMITS.pack(*dataclasses.astuple(limits))


def unpack_limits(message: bytes) -> Limits:
    return Limits(*LIMITS.unpack(message))


def sealed_file(name: str, text: str) -> int:
    """A descriptor of memory that holds `text` and cannot be changed by whoever gets it. Half a character, which no
    UTF-8 can hold, is passed on as it is: what reads it finds it wrong, as it should."""
    import fcntl  # here, as this module is imported also where there is none

    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", buffering=0, closefd=False) as file:
            content = memoryview(text.encode("utf-8", "surrogatepass"))
            while content:
                content = content[file.write(content) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def pack_outcome(facts: Mapping[str, object], stdout: bytes, stderr: bytes) -> bytes:
    """`facts` are the fields of an Outcome other than its output."""
    head = json.dumps(facts).encode()
    return b"".join([SIZES.pack(len(head), len(stdout), len(stderr)), head, stdout, stderr])


def unpack_outcome(answer: bytes) -> Outcome | None:
    """None: the answer is not whole."""
    if len(answer) < SIZES.size:
        return None
    sizes = SIZES.unpack_from(answer)
    if len(answer) != SIZES.size + sum(sizes):
        return None
    head, stdout, stderr = (
        answer[SIZES.size + sum(sizes[:i]) : SIZES.size + sum(sizes[: i + 1])] for i in range(len(sizes))
    )
    return Outcome(
        **json.loads(head), stdout=stdout.decode("utf-8", "replace"), stderr=stderr.decode("utf-8", "replace")
    )
