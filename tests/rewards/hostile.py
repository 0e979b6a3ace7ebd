"""Hostile reward functions, a table by name; test_hostile.py says what must come of each. It is itself the reward file:
the response names the function. `honest` stands for the sample next to it.

VALUES return something odd, ACTS raise or do harm; each has what its error says (an expression), or None: it is scored.
"""

import asyncio
import builtins
import json
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

MARK = "987654.3"  # seconds that whatever is left behind sleeps, by which it is found
SPOILT = 'a\x1b[2Jb"\\\n\u202e\x9b\ud800/..//'


class Tricky(float):
    """Nothing but the number itself may be used."""

    def _fail(self, *_: object) -> Any:
        raise RuntimeError("no such method")

    __eq__ = __lt__ = __gt__ = __add__ = __radd__ = __abs__ = __format__ = __repr__ = __str__ = __reduce__ = _fail
    __hash__ = float.__hash__


class Unfloatable(float):
    def __float__(self) -> float:
        raise RuntimeError("no such number\n\x1b[2J")


class Unreadable:
    def __repr__(self) -> str:
        raise SystemExit(3)

    __str__ = __repr__

    def __reduce__(self) -> Any:
        raise RuntimeError("not to be pickled")


class Text(str):
    __str__ = __repr__ = __len__ = lambda self: 1 / 0


class Named:
    def __str__(self) -> str:
        return "score"


class Liar:
    __class__ = float  # type: ignore[assignment]


class Endless(Mapping):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: Any) -> Any:
        return 1.0

    def __iter__(self) -> Iterator[str]:
        number = 0
        while True:
            yield "score" if not number else str(number)
            number += 1


class Uncalled:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def nested(levels: int) -> list:
    return [] if not levels else [nested(levels - 1)]


def bomb() -> list:
    """A few lists that stand for 10**12 items."""
    one: list = [1] * 10
    for _ in range(11):
        one = [one] * 10
    return one


def itself() -> list:
    one: list = []
    one.append(one)
    return one


def torch() -> Any:
    import torch

    return torch


def deep() -> list:
    one: list = []
    for _ in range(100_000):
        one = [one]
    return one


NO_NUMBER = "return a finite number"
TOO_LARGE = r"at most 1e\+15"
VALUES: dict[str, tuple[Callable[[], Any], str | None]] = {
    "a huge whole number": (lambda: 10**400, rf"returned inf; {NO_NUMBER}"),
    "a number too long to print": (lambda: 10**5000, rf"returned inf; {NO_NUMBER}"),
    "a huge fraction": (lambda: Fraction(10**400), rf"returned inf; {NO_NUMBER}"),
    "more than float32 holds": (lambda: 1e308, rf"returned 1e\+308; .*{TOO_LARGE}"),
    "more than float32 has the square of": (lambda: {"score": -1e30}, rf'returned "score": -1e\+30; .*{TOO_LARGE}'),
    "numpy's long double": (lambda: np.longdouble("1e4000"), rf"returned inf; {NO_NUMBER}"),
    "infinity": (lambda: {"score": -math.inf}, rf'returned "score": -inf; {NO_NUMBER}'),
    "a complex number": (lambda: 1 + 0j, NO_NUMBER),
    "numpy's complex number": (lambda: np.complex64(1), NO_NUMBER),
    "a decimal": (lambda: Decimal(1), r"Decimal\('1'\)"),
    "a date": (lambda: np.datetime64("2020"), NO_NUMBER),
    "a list in an array": (lambda: np.array(None, dtype=object), NO_NUMBER),
    "a tensor without values": (lambda: torch().ones((), device="meta"), NO_NUMBER),
    "a text": (lambda: SPOILT, r"'a\\x1b\[2Jb"),
    "a text class": (lambda: Text("1"), NO_NUMBER),
    "a generator": (lambda: (1.0 for _ in range(3)), "generator"),
    "itself as a list": (itself, NO_NUMBER),
    "a million numbers": (lambda: [1.0] * 10**6, NO_NUMBER),
    "a number that raises": (lambda: Unfloatable(1.0), "cannot be read: RuntimeError"),
    "an object that lies": (Liar, "cannot be read"),
    "an object that raises": (Uncalled, "cannot be read|cannot be shown"),
    "an object that cannot be shown": (Unreadable, "an object that cannot be shown"),
    "no score": (lambda: {"reward": 1.0, SPOILT: 1, Unreadable: 2}, 'a dict without "score"'),
    "a million keys and no score": (lambda: dict.fromkeys(range(10**6)), 'a dict without "score"'),
    "a million keys": (lambda: {"score": 1.0, **{str(i): i for i in range(10**6)}}, "more than 1000 keys"),
    "an endless dict": (Endless, "more than 1000 keys"),
    "keys that collide": (lambda: {"score": 1.0, 1: 2, "1": 3}, "two keys that are both written 1"),
    "two scores": (lambda: {"score": 1.0, Named(): 3}, "two keys that are both written score"),
    "a key that is too long": (lambda: {"score": 1.0, "x" * 10**6: 1}, "a key of 1000000 characters"),
    "a key that cannot be written": (lambda: {"score": 1.0, Unreadable(): 1}, "cannot be read|cannot be shown"),
    "an array without axes": (lambda: np.array(Fraction(1), dtype=object), None),
    "a tensor without axes": (lambda: torch().ones((), dtype=torch().bfloat16, requires_grad=True), None),
    "a number with tricks": (lambda: {"score": Tricky(1), "acc": Tricky(1), "big": 2**1023}, None),
    "odd keys": (lambda: {"score": 1.0, SPOILT: 1, None: 2, (1, 2): 3, "": 4, "overlong_reward": "x"}, None),
    "odd texts": (lambda: {"score": 1.0, "text": SPOILT, "class": Text("x"), "long": "x" * 10**8}, None),
    "odd numbers": (lambda: {"score": 1, "acc": 10**400, "n": 10**5000, "d": np.longdouble(1), "j": 1j}, None),
    "odd objects": (lambda: {"score": 1, "a": Unreadable(), "b": Uncalled(), "c": open, "d": threading.Lock()}, None),
    "nested": (lambda: {"score": 1, "a": nested(500), "b": itself(), "c": deep(), "d": Endless()}, None),
    "a bomb": (lambda: {"score": 1, "bomb": bomb()}, None),
}  # fmt: skip


class Loud(Exception):
    def __str__(self) -> str:
        return SPOILT * 10**5


class Mute(BaseException):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


def fail(error: BaseException | type[BaseException]) -> Any:
    raise error


def unnamed() -> Any:
    class Unnamed(Exception, metaclass=Nameless):
        pass

    raise Unnamed


def recurse() -> float:
    return recurse()


def group(errors: int) -> Any:
    error: Exception = ValueError("inside")
    for _ in range(50):
        error = ExceptionGroup("outside", [error] * errors)
    raise error


#: What is raised, and said of it: in a process, and where the function runs in place.
RAISED: dict[str, tuple[Callable[[], Any], str | None]] = {
    "an error with a long text": (lambda: fail(Loud()), "Loud"),
    "an error without a text": (lambda: fail(Mute()), "Mute"),
    "an error without a name": (unnamed, "an exception that cannot be shown"),
    "an error with a broken note": (lambda: fail(type("E", (Exception,), {"__notes__": 3})()), "E"),
    "errors of errors": (lambda: group(1), "outside"),
    "sys.exit": (lambda: sys.exit(3), "SystemExit: 3"),
    "no Exception": (lambda: fail(BaseException("odd")), "BaseException: odd"),
    "cancelled": (lambda: fail(asyncio.CancelledError), "CancelledError"),
    "generator exit": (lambda: fail(GeneratorExit), "GeneratorExit"),
    "no end of recursion": (recurse, "RecursionError"),
    "no memory": (lambda: bytearray(2**60), "MemoryError"),
    "an end of iteration": (lambda: fail(StopIteration(1)), "StopIteration"),
}


def to_parent(number: int) -> float:
    os.kill(os.getppid(), number)
    return 1.0


def flood() -> float:
    for _ in range(50):
        print(SPOILT * 10**3)
        sys.stderr.write("y" * 10**4 + "\n")
    return 1.0


def garbage() -> float:
    for descriptor in range(3, 30):
        try:
            os.set_blocking(descriptor, False)
            os.write(descriptor, b"\xff" * 100)
        except OSError:
            continue
    time.sleep(1000)
    return 1.0


def spend_memory() -> float:
    """Within a limit that it sets itself: without one the machine's memory is the limit."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, hard))
    kept = []
    while True:
        kept.append(bytearray(2**20))


def spoil(what: Any, name: str, value: Any) -> float:
    setattr(what, name, value)
    return 1.0


def forge(answer: Any) -> float:
    from burnish.child import frames

    return spoil(frames, "json_bytes", lambda value: json.dumps(answer).encode())


def leave_thread() -> float:
    threading.Thread(target=time.sleep, args=(float(MARK),)).start()
    return 1.0


def spawn() -> float:
    subprocess.Popen(["sleep", MARK])
    return 1.0


def fork() -> float:
    os.fork()  # both return
    return 1.0


def fork_and_sleep() -> float:
    if not os.fork():
        os.execvp("sleep", ["sleep", MARK])
    return 1.0


def leave_folder() -> float:
    os.chdir("/")
    os.environ.clear()
    sys.path.clear()
    return 1.0


def few_files() -> float:
    resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return 1.0


def forever() -> float:
    while True:
        pass


#: What is done to the process, and said of it; each in a fresh process. Those after None leave it usable.
ACTS: dict[str, tuple[Callable[[], Any], str | None]] = {
    "os._exit": (lambda: os._exit(3), "the scoring process died: exit status 3"),
    "a signal that kills": (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL"),
    "abort": (lambda: os.kill(os.getpid(), signal.SIGABRT), "killed by SIGABRT"),
    "its whole group": (lambda: os.killpg(0, signal.SIGTERM), "killed by SIGTERM"),
    "closed pipes": (lambda: (os.closerange(3, 100), time.sleep(1000)), "the scoring process died"),
    "garbage in all files": (garbage, "unreadable answer|died"),
    "forged numbers": (lambda: forge({"answers": [{"score": math.nan, "info": {}}]}), "an unreadable answer"),
    "forged types": (lambda: forge({"answers": [{"score": 1.0, "info": 3}]}), "an unreadable answer"),
    "forged texts": (lambda: forge({"error": ["no"]}), "an unreadable answer"),
    "KeyboardInterrupt": (lambda: fail(KeyboardInterrupt), "KeyboardInterrupt"),
    "too much memory": (spend_memory, "MemoryError"),
    "a loop without end": (forever, "timed out: no score within"),
    "an error that takes ages to print": (lambda: group(2), "timed out: no score within"),
    "stopped": (lambda: os.kill(os.getpid(), signal.SIGSTOP), "timed out: no score within"),
    "a flood of text": (flood, None),
    "no stdout": (lambda: (sys.stdout.close(), os.close(1), 1.0)[-1], None),
    "no json": (lambda: spoil(json, "dumps", None), None),
    "no print": (lambda: spoil(builtins, "print", None), None),
    "another folder and environment": (leave_folder, None),
    "few files": (few_files, None),
    "a thread": (leave_thread, None),
    "a program": (spawn, None),
    "a fork that returns": (fork, None),
    "a fork that sleeps": (fork_and_sleep, None),
    "SIGCHLD": (lambda: to_parent(signal.SIGCHLD), None),
    "SIGCONT": (lambda: to_parent(signal.SIGCONT), None),
    "SIGPIPE": (lambda: to_parent(signal.SIGPIPE), None),
}  # fmt: skip

ALL = VALUES | RAISED | ACTS | {"honest": (lambda: 0.5, None)}


def compute_score(solution_str: str) -> Any:
    return ALL[solution_str][0]()


async def compute_score_async(solution_str: str) -> Any:
    await asyncio.sleep(0.05)  # so that all calls have begun
    found = ALL[solution_str][0]()
    await asyncio.sleep(0.05)
    return found


async def compute_score_late(solution_str: str) -> Any:
    """`never` does not end, and `stubborn` not even where it is cancelled."""
    while solution_str != "honest":
        try:
            await asyncio.sleep(float(MARK))
        except asyncio.CancelledError:
            if solution_str == "never":
                raise
    return 0.5


def compute_scores(solution_strs: list[str]) -> Any:
    return [ALL[text][0]() for text in solution_strs]
