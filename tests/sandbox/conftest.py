"""One sandbox for all tests here; where this machine refuses the namespaces, a skip that says so."""

import asyncio
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from burnish.sandbox import Limits, Outcome, Program
from burnish.sandbox.local import LocalSandbox

#: In everything that hostile programs leave behind if they can: names of files, command lines.
MARK = f"burnish-mark-{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def sandbox() -> Iterator[LocalSandbox]:
    """Its supervisor is started while there is a secret in the environment."""
    os.environ["BURNISH_TEST_SECRET"] = MARK
    found = LocalSandbox()
    reason = asyncio.run(found.unavailable_reason())
    del os.environ["BURNISH_TEST_SECRET"]
    if reason is not None:
        permitted = subprocess.run(["unshare", "--map-root-user", "--mount", "--net", "true"]).returncode == 0
        (pytest.fail if permitted else pytest.skip)(reason)
    yield found
    found.close()


@pytest.fixture(scope="session")
def run(sandbox: LocalSandbox):

    def run(source: str, stdin: str = "", **limits: float) -> Outcome:
        chosen = Limits(**{"seconds": 10.0, **limits})  # type: ignore[arg-type]
        return asyncio.run(sandbox.run(Program(source, stdin), chosen))

    return run


def supervisor_pid(sandbox: LocalSandbox) -> int:
    return sandbox._supervisors.children[True].pid


def children(pid: int) -> list[int]:
    found = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(word) for words in found for word in words]


def marked_processes() -> list[Path]:
    """Of this machine's processes whose command lines hold the mark: their folders in /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            if MARK.encode() in path.read_bytes():
                found.append(path.parent)
    return found
