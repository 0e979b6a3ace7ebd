"""The hostile programs all run at the same time: each must end as it should, and none may leave anything behind."""

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from burnish.sandbox import Outcome, Program
from burnish.sandbox.local import LocalSandbox, python_folders
from tests.sandbox.conftest import MARK, children, marked_processes, supervisor_pid
from tests.sandbox.hostile import HOSTILE


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


@pytest.fixture(scope="module")
def outcomes(sandbox: LocalSandbox, known: dict[str, object]) -> dict[str, Outcome]:
    head = "".join(f"{name} = {value!r}\n" for name, value in known.items())

    async def run_all() -> list[Outcome]:
        programs = [(Program(head + one.source, one.stdin), one.limits) for one in HOSTILE.values()]
        return await asyncio.gather(*(sandbox.run(*program) for program in programs))

    return dict(zip(HOSTILE, asyncio.run(run_all()), strict=True))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_program_has_the_expected_outcome(name, outcomes):
    outcome, hostile = outcomes[name], HOSTILE[name]
    assert outcome.status in hostile.status and hostile.right(outcome), outcome


def test_none_uses_much_more_than_its_limit(outcomes):
    """By the sandbox's own count, without waiting for a busy core; the room is for a supervisor that gets no core."""
    over = {name: outcome.seconds - HOSTILE[name].limits.seconds for name, outcome in outcomes.items()}
    assert max(over.values()) < 30, over


@pytest.mark.parametrize("name", ["endless loop", "endless sleep", "stubborn fork bomb", "deaf to signals"])
def test_it_is_ended_soon_after_its_limit(name, sandbox):
    """By the clock, with room for a busy machine; their limits are far below that."""
    begin = time.monotonic()
    assert asyncio.run(sandbox.run(Program(HOSTILE[name].source), HOSTILE[name].limits)).status == "timeout"
    assert time.monotonic() - begin < HOSTILE[name].limits.seconds + 30


def test_nothing_is_left_behind_and_nobody_outside_was_reached(sandbox, outcomes, known, listeners):
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
