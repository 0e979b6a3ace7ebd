"""Whoever trains: root, root without its rights, an ordinary user, another Python. Each is a process of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "burnish"
SYSTEM_PYTHON = "/usr/bin/python3"
#: Prints what happened to a program that looks around, one that forks without end and one that sleeps.
LOOK = """
import asyncio, sys
sys.path.append(sys.argv[1])
from burnish.sandbox import Limits, Program
from burnish.sandbox.local import LocalSandbox

async def main():
    sandbox = LocalSandbox()
    assert await sandbox.why_not() is None, await sandbox.why_not()
    limits = Limits(seconds=0.4, processes=8)
    sources = [
        "import os; print(os.getuid(), os.getgid(), os.path.exists('/proc'), os.listdir())",
        "import os\\nwhile True:\\n    try: os.fork()\\n    except OSError: pass",
        "import time; time.sleep(9)",
        "import socket; socket.socket()",
    ]
    outcomes = await asyncio.gather(*(sandbox.run(Program(source), limits) for source in sources))
    print(outcomes[0].stdout.strip(), *(outcome.status for outcome in outcomes))
asyncio.run(main())
"""
SEEN = "1000 1000 False ['main.py'] finished timeout timeout finished"


def supported(python: str) -> bool:
    check = "import sys; raise SystemExit(sys.version_info < (3, 11))"
    return os.path.exists(python) and subprocess.run([python, "-c", check]).returncode == 0


def look(prefix: list[str], python: str, package: Path) -> str:
    """Its files are by default for nobody else: what is made for programs must not be."""
    command = [*prefix, python, "-I", "-c", LOOK, str(package.parent)]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", umask=0o077, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def open_copy(tmp_path: Path) -> Path:
    """The sandbox's files, and those that it imports, where everyone can read them."""
    for folder in ("sandbox", "child"):
        shutil.copytree(PACKAGE / folder, tmp_path / "burnish" / folder)
    for file in ("__init__", "errors", "loop_thread", "waits"):
        shutil.copy(PACKAGE / f"{file}.py", tmp_path / "burnish")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == Path(PACKAGE).owner() and folder != Path("/tmp") and folder != Path("/"):
            folder.chmod(0o755)
    return tmp_path / "burnish"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
@pytest.mark.skipif(not supported(SYSTEM_PYTHON), reason=f"{SYSTEM_PYTHON}: there is none, or it is older than 3.11")
@pytest.mark.parametrize(
    "prefix",
    [
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"],
        ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all"],
    ],
    ids=["an ordinary user", "root without the right to mount"],
)
def test_it_works_for(sandbox, prefix, open_copy):
    assert look(prefix, SYSTEM_PYTHON, open_copy) == SEEN


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be such a root")
def test_root_that_can_be_nobody_else_is_refused(sandbox):
    """As the kernel does not count its processes, nothing would stop a fork bomb."""
    with pytest.raises(AssertionError, match="does not count those of root"):
        look(["unshare", "--map-root-user"], sys.executable, PACKAGE)


def test_it_works_for_a_python_in_the_temporary_folder(sandbox, tmp_path):
    """Which is also where the new root is built, and the name of a program's private folder."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    seen = look([], str(tmp_path / "venv/bin/python"), PACKAGE)
    assert seen.endswith("finished timeout timeout finished") and seen.startswith("1000 1000 False")
