"""Hostile programs run many at the same time, each with an honest neighbour: each must end as it should, its neighbour
must not notice, and none may leave anything behind."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from burnish.sandbox import Limits, Outcome, Program
from burnish.sandbox.jail import linux, seccomp
from burnish.sandbox.local import LocalSandbox, python_folders
from tests.sandbox.conftest import MARK, children, marked_processes, supervisor_pid
from tests.sandbox.hostile import HOSTILE, Hostile
from tests.sandbox.hostile_more import MORE

pytestmark = pytest.mark.hostile
TABLES = HOSTILE, MORE
MARKS: tuple[list[pytest.MarkDecorator], ...] = [], [pytest.mark.long]
AT_A_TIME = 32
#: Uses what hostile programs use up: memory, files, pipes, sockets, processes and threads.
NEIGHBOUR = """
import os, socket, subprocess, sys, threading
ours, theirs = socket.socketpair()
theirs.sendall(b"x" * 50000)
with open("f", "wb") as file: file.write(b"x" * 2**22)
kept = [b"x" * 2**20 for _ in range(32)]
thread = threading.Thread(target=print, args=("thread",))
thread.start(), thread.join()
print(subprocess.run(["/bin/echo", "child"], stdout=subprocess.PIPE, text=True).stdout, end="")
print(len(ours.recv(50000)) > 0, os.path.getsize("f") + len(kept), os.listdir())
"""
NEIGHBOUR_PRINTS = f"thread\nchild\nTrue {2**22 + 32} ['main.py', 'f']\n"


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, socket.socket]]:
    folder = tmp_path_factory.mktemp("sockets")
    addresses = {"PORT": ("127.0.0.1", 0), "PATH_SOCKET": str(folder / "socket"), "ABSTRACT_SOCKET": f"\0{MARK}"}
    found = {name: socket.socket(socket.AF_INET if name == "PORT" else socket.AF_UNIX) for name in addresses}
    for name, listener in found.items():
        listener.bind(addresses[name])
        listener.listen()
        listener.setblocking(False)
    yield found
    for listener in found.values():
        listener.close()


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory, listeners: dict[str, socket.socket]) -> dict[str, object]:
    """What lies outside, ready to be found: a planted secret, this file, and what there is in the home folder."""
    planted = tmp_path_factory.mktemp("outside") / "secret"
    planted.write_text(MARK)
    column = list(seccomp.ARCHITECTURES).index(linux.MACHINE)
    secrets = [planted, Path(__file__), *(path for path in Path.home().iterdir() if path.is_file())]
    on_the_way = [Path(folder) for folder in python_folders() if Path(folder).is_relative_to(Path.home())]
    return {
        "MARK": MARK,
        "PID": os.getpid(),
        "SECRETS": [str(path) for path in secrets],
        "FOLDERS": sorted({str(path.parent) for path in secrets}),
        "HOME": str(Path.home()),
        "HOME_NAMES": [folder.relative_to(Path.home()).parts[0] for folder in on_the_way],
        "PORT": listeners["PORT"].getsockname()[1],
        "PATH_SOCKET": listeners["PATH_SOCKET"].getsockname(),
        "ABSTRACT_SOCKET": f"\0{MARK}",
        "REFUSED": [n[column] for n in seccomp.REFUSED.values() if n[column] is not None],
    }


async def run_table(
    sandbox: LocalSandbox, known: dict[str, object], table: dict[str, Hostile]
) -> dict[str, tuple[Outcome, Outcome]]:
    """Of each program, its outcome and its neighbour's."""
    head = "".join(f"{name} = {value!r}\n" for name, value in known.items())
    places = asyncio.Semaphore(AT_A_TIME)

    async def run_both(one: Hostile) -> tuple[Outcome, Outcome]:
        async with places:
            hostile = sandbox.run(Program(head + one.source, one.stdin), one.limits)
            return await asyncio.gather(hostile, sandbox.run(Program(NEIGHBOUR), Limits(memory_mb=128)))

    return dict(zip(table, await asyncio.gather(*map(run_both, table.values())), strict=True))


Outcomes = dict[str, tuple[Outcome, Outcome]]


@pytest.fixture(scope="module")
def outcomes(sandbox: LocalSandbox, known: dict[str, object]) -> Callable[[int], Outcomes]:
    return cache(lambda table: asyncio.run(run_table(sandbox, known, TABLES[table])))


@pytest.mark.parametrize(
    ("table", "name"),
    [pytest.param(i, name, marks=MARKS[i], id=name) for i, table in enumerate(TABLES) for name in table],
)
def test_hostile_program_has_the_expected_outcome(table, name, outcomes):
    """Seconds are by the sandbox's own count, without waiting for a busy core; the room is for a supervisor that gets
    no core. On a machine that gives a program hardly any core, its outcome says so, and nothing about it."""
    hostile, (outcome, neighbour) = TABLES[table][name], outcomes(table)[name]
    if "the machine is too busy" in outcome.reason:
        pytest.skip(outcome.reason)
    assert outcome.status in hostile.status and hostile.right(outcome), outcome
    assert outcome.seconds < hostile.limits.seconds + 30
    assert neighbour.succeeded and sorted(neighbour.stdout) == sorted(NEIGHBOUR_PRINTS), neighbour


@pytest.mark.parametrize("name", ["endless loop", "endless sleep", "stubborn fork bomb", "deaf to signals"])
def test_it_is_ended_soon_after_its_limit(name, sandbox):
    """By the clock, with room for a busy machine; their limits are far below that."""
    begin = time.monotonic()
    assert asyncio.run(sandbox.run(Program(HOSTILE[name].source), HOSTILE[name].limits)).status == "timeout"
    assert time.monotonic() - begin < HOSTILE[name].limits.seconds + 30


@pytest.mark.parametrize("table", [pytest.param(i, marks=marks) for i, marks in enumerate(MARKS)])
def test_nothing_is_left_behind_and_nobody_outside_was_reached(table, outcomes, sandbox, known, listeners):
    """No process, and with the last of them the kernel has dropped their files, memory and sockets."""
    outcomes(table)
    assert children(supervisor_pid(sandbox)) == []
    assert marked_processes() == []
    for folder in ("/", "/usr", "/usr/lib", "/etc", "/dev", "/dev/shm", "/var/tmp", "/tmp", *known["FOLDERS"]):
        assert not os.path.exists(os.path.join(folder, MARK)), folder
    for listener in listeners.values():
        with pytest.raises(BlockingIOError):
            listener.accept()
    fresh = LocalSandbox()  # one that ran a harmless program: the supervisor has no descriptor and no mount more
    assert asyncio.run(fresh.unavailable_reason()) is None
    assert state(supervisor_pid(sandbox)) == state(supervisor_pid(fresh))
    fresh.close()


def state(pid: int) -> tuple[int, int]:
    return len(os.listdir(f"/proc/{pid}/fd")), len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
