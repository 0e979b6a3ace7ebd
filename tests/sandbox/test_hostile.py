"""The hostile programs all run at the same time: each must end as it should, and none may leave anything behind."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from burnish.sandbox import Outcome, Program
from burnish.sandbox.child import python_folders
from burnish.sandbox.local import LocalSandbox
from tests.sandbox.conftest import MARK, children, marked_processes, supervisor_pid
from tests.sandbox.hostile import HOSTILE

LISTENERS = {"PORT": socket.AF_INET, "PATH_SOCKET": socket.AF_UNIX, "ABSTRACT_SOCKET": socket.AF_UNIX}


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, socket.socket]]:
    folder = tmp_path_factory.mktemp("sockets")
    addresses = {"PORT": ("127.0.0.1", 0), "PATH_SOCKET": str(folder / "socket"), "ABSTRACT_SOCKET": f"\0{MARK}"}
    found = {name: socket.socket(family) for name, family in LISTENERS.items()}
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
    }


@dataclass(frozen=True)
class Batch:
    outcomes: dict[str, Outcome]
    supervisor_waited: float  # seconds for a busy core, in which it could end nobody


@pytest.fixture(scope="module")
def batch(sandbox: LocalSandbox, known: dict[str, object]) -> Batch:
    head = "".join(f"{name} = {value!r}\n" for name, value in known.items())

    async def run_all() -> list[Outcome]:
        programs = [(Program(head + one.source, one.stdin), one.limits) for one in HOSTILE.values()]
        return await asyncio.gather(*(sandbox.run(*program) for program in programs))

    before = waited(supervisor_pid(sandbox))
    outcomes = dict(zip(HOSTILE, asyncio.run(run_all()), strict=True))
    return Batch(outcomes, waited(supervisor_pid(sandbox)) - before)


def waited(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


@pytest.mark.parametrize("name", HOSTILE)
def test_it_ends_as_it_should(name, batch):
    outcome, hostile = batch.outcomes[name], HOSTILE[name]
    assert outcome.status in hostile.status and hostile.right(outcome), outcome


def test_none_takes_more_than_its_limit_and_a_second(batch):
    took = {name: outcome.seconds - HOSTILE[name].limits.seconds for name, outcome in batch.outcomes.items()}
    between_looks = 0.2 * len(os.sched_getaffinity(0))  # a crowd of processes computes on every core at once
    assert max(took.values()) < 1 + batch.supervisor_waited + between_looks, took


# A crowd of a program's own short children is taken for a busy machine for some seconds, so it is not among these.
IN_TIME = ("endless loop", "endless sleep", "stubborn fork bomb", "deaf to signals")


@pytest.mark.parametrize("name", IN_TIME)
def test_whoever_waits_for_it_waits_for_its_limit_and_a_second(name, sandbox):
    """By the clock. A busy machine makes everyone late, so the better of two counts, less how late that makes all."""
    hostile, late = HOSTILE[name], []
    for _ in range(2):
        begin = time.monotonic()
        assert asyncio.run(sandbox.run(Program(hostile.source), hostile.limits)).status in hostile.status
        late.append(time.monotonic() - begin - hostile.limits.seconds)
        if late[-1] < 1:
            break
    assert min(late) < 1 + machine_lateness(), late


def machine_lateness() -> float:
    """How much longer than it computes a process takes that computes beside as many as there are cores."""
    source = "import time\nbegin = time.monotonic()\nwhile time.process_time() < 0.4: pass\n"
    command = [sys.executable, "-c", source + "print(time.monotonic() - begin - 0.4)"]
    found = [
        subprocess.Popen(["nice", *command], stdout=subprocess.PIPE, text=True)
        for _ in range(len(os.sched_getaffinity(0)))
    ]
    return max(float(process.communicate()[0]) for process in found)


def test_nothing_is_left_behind(sandbox, batch, known):
    assert children(supervisor_pid(sandbox)) == []
    assert marked_processes() == []
    for folder in ("/", "/usr", "/usr/lib", "/etc", "/dev", "/dev/shm", "/var/tmp", "/tmp", *known["FOLDERS"]):
        assert not os.path.exists(os.path.join(folder, MARK)), folder


def test_nobody_outside_was_reached(batch, listeners):
    for listener in listeners.values():
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_the_supervisor_is_as_one_that_ran_a_harmless_program(sandbox, batch):
    """No descriptor more, no mount more."""
    fresh = LocalSandbox()
    assert asyncio.run(fresh.why_not()) is None
    assert state(supervisor_pid(sandbox)) == state(supervisor_pid(fresh))
    fresh.close()


def state(pid: int) -> tuple[int, int]:
    return len(os.listdir(f"/proc/{pid}/fd")), len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
