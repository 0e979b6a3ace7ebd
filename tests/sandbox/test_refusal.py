"""Whoever trains: users, other Pythons, and machines without isolation, which never run a program by accident."""

import asyncio
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from burnish.config.reward import SandboxConfig
from burnish.sandbox import Limits, Program, limits_of, open_sandbox
from burnish.sandbox.local import LocalSandbox, how_to_permit

HEAD = """
import asyncio, json, logging, os, sys
from burnish.sandbox import Limits, Program
from burnish.sandbox.jail import linux, seccomp
from burnish.sandbox.local import LocalSandbox

logging.basicConfig(format="%(message)s")
steps = [seccomp._step(seccomp.LOAD, seccomp.CALL)]
for name in sys.argv[1].split():
    number = seccomp.REFUSED[name][list(seccomp.ARCHITECTURES).index(linux.MACHINE)]
    steps += [seccomp._step(seccomp.JUMP_EQUAL, number, otherwise=1), seccomp._refuse(int(sys.argv[2]))]
linux.prctl("no new rights", linux.PR_SET_NO_NEW_PRIVS, 1)
seccomp.install(b"".join([*steps, seccomp._step(seccomp.RETURN, seccomp.ALLOW)]))
"""
REFUSED = """
async def main():
    sandbox = LocalSandbox()
    source = "import os; print(os.listdir('/..') == os.listdir('/'), os.path.exists('/proc'), os.path.exists('/var'))"
    outcome = await sandbox.run(Program(source), Limits())
    print(json.dumps([outcome.status, outcome.stdout, outcome.reason, await sandbox.unavailable_reason()]))
asyncio.run(main())
"""
UNSAFE = """
async def main():
    sandbox = LocalSandbox(allow_unsafe=True)
    limits = Limits(seconds=1.0, memory_mb=128, processes=8)
    programs = json.load(sys.stdin)
    outcomes = await asyncio.gather(*(sandbox.run(Program(source, "x"), limits) for source in programs))
    supervisor = sandbox._supervisors.children[False].pid
    for _ in range(3000):  # what was killed among the last comes to the supervisor one by one
        with open(f"/proc/{supervisor}/task/{supervisor}/children") as file:
            left = file.read().split()
        if not left:
            break
        await asyncio.sleep(0.01)
    print(json.dumps([await sandbox.unavailable_reason(), left, [[o.status, o.exit_code, o.stdout] for o in outcomes]]))
asyncio.run(main())
"""


def run_where(
    forbidden: str, body: str, stdin: str = "", number: int = errno.EPERM, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`number`: of the error that what is forbidden gets."""
    command = [sys.executable, "-c", HEAD + body, forbidden, str(number)]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("forbidden", "named"),
    [("unshare", "new user and mount namespaces"), ("mount", "mount /"), ("pivot_root chroot", "chroot")],
)
def test_a_program_is_not_run_and_the_fixes_are_named(forbidden, named):
    status, stdout, reason, why = json.loads(run_where(forbidden, REFUSED).stdout)
    assert (status, stdout) == ("failed", "") and named in reason
    assert named in why and "Operation not permitted" in why
    for fix in ("unprivileged_userns", "seccomp=unconfined", "SYS_ADMIN", "sandbox.url", "allow_unsafe=true"):
        assert fix in why


def test_a_container_that_refuses_only_the_usual_way_to_a_new_root_will_do(sandbox):
    status, stdout, _, why = json.loads(run_where("pivot_root", REFUSED).stdout)
    assert (status, stdout, why) == ("finished", "True False False\n", None)


#: Source → status, exit code, output. Everything they leave behind is theirs to find in TMPDIR.
UNDER_LIMITS = {
    "print(input())": ["finished", 0, "x\n"],
    "import os; print(sorted(os.environ)[:3], os.listdir())": [
        "finished", 0, "['HOME', 'LANG', 'MALLOC_ARENA_MAX'] ['main.py']\n",
    ],
    "while True: pass": ["timeout", None, ""],
    "x = []\nwhile True: x.append(b'x' * 2**20)": ["memory", None, ""],
    "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass": ["timeout", None, ""],
    "import os\nos.kill(os.getppid(), 9)\nwhile True: pass": ["finished", -9, ""],
    "import os, time\nif not os.fork():\n    os.setsid()\n    os.fork()\n    time.sleep(99)": ["finished", 0, ""],
    "import os\nfor _ in range(1500): os.mkdir('inner'); os.chdir('inner')": ["finished", 0, ""],
    "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w')\nos.chmod('a/b', 0)\nos.chmod('a', 0)": ["finished", 0, ""],
}  # fmt: skip


def test_allowed_explicitly_programs_run_under_limits_alone(tmp_path):
    done = run_where("unshare", UNSAFE, json.dumps(list(UNDER_LIMITS)), TMPDIR=str(tmp_path))
    why, left, outcomes = json.loads(done.stdout)
    assert why is None and outcomes == list(UNDER_LIMITS.values())
    assert left == [] and list(tmp_path.iterdir()) == []
    assert done.stderr.count("WITHOUT isolation") == 1


FAULTY = """
async def main():
    sandbox = LocalSandbox(allow_unsafe=True)
    outcome = await sandbox.run(Program("print(1)"), Limits())
    children = list(sandbox._supervisors.children)
    print(json.dumps([outcome.status, outcome.reason, outcome.refused, sandbox._probed, children]))
    print(json.dumps(await sandbox.unavailable_reason()))
asyncio.run(main())
"""


def test_a_fault_that_may_pass_is_no_refusal():
    """Where unsafe programs are allowed, a moment without descriptors must not make them so."""
    done = run_where("mount", FAULTY, number=errno.EMFILE)
    found, why = map(json.loads, done.stdout.splitlines())
    assert found == ["failed", "mount /: Too many open files", False, False, [True]]
    assert "mount /: Too many open files" in why and "try again" in why and "sysctl" not in why
    assert "WITHOUT isolation" not in done.stderr


def test_after_a_fault_that_passed_programs_are_isolated(sandbox, monkeypatch):
    lenient = LocalSandbox(allow_unsafe=True)
    no_more_files = AsyncMock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    with monkeypatch.context() as short:
        short.setattr(asyncio.BaseEventLoop, "subprocess_exec", no_more_files)
        outcome = asyncio.run(lenient.run(Program("print(1)"), Limits()))
    assert outcome.status == "failed" and "Too many open files" in outcome.reason
    outcome = asyncio.run(lenient.run(Program("import os; print(os.getuid(), os.path.exists('/proc'))"), Limits()))
    assert outcome.stdout == "1000 False\n" and list(lenient._supervisors.children) == [True]
    lenient.close()


def test_switches_that_forbid_it_are_named(monkeypatch, tmp_path):
    switch = tmp_path / "max_user_namespaces"
    switch.write_text("0\n")
    monkeypatch.setattr("burnish.sandbox.local.SWITCHES", {str(switch): "0"})
    assert "max_user_namespaces=0 is set here" in how_to_permit("it is so")


def test_the_configuration_chooses_sandbox_and_limits():
    config = SandboxConfig(backend="local", timeout=3.5, memory_limit_mb=256)
    assert isinstance(open_sandbox(config), LocalSandbox)
    assert limits_of(config) == Limits(seconds=3.5, memory_mb=256)


def test_another_system_than_linux_is_refused_whatever_is_allowed(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    elsewhere = LocalSandbox(allow_unsafe=True)
    why = asyncio.run(elsewhere.unavailable_reason())
    assert why is not None and "needs Linux, and this is darwin" in why
    assert asyncio.run(elsewhere.run(Program("print(1)"), Limits())).status == "failed"


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
    assert await sandbox.unavailable_reason() is None, await sandbox.unavailable_reason()
    sources = [
        "import os; print(os.getuid(), os.getgid(), os.path.exists('/proc'), os.listdir())",
        "import os\\nwhile True:\\n    try: os.fork()\\n    except OSError: pass",
        "import time; time.sleep(9)",
        "import socket; socket.socket()",
    ]
    seconds = [60, 0.4, 0.4, 60]
    runs = [sandbox.run(Program(source), Limits(most, processes=8)) for source, most in zip(sources, seconds)]
    outcomes = await asyncio.gather(*runs)
    print(outcomes[0].stdout.strip(), *(outcome.status for outcome in outcomes))
asyncio.run(main())
"""


def supported(python: str) -> bool:
    check = "import sys; raise SystemExit(sys.version_info < (3, 11))"
    return os.path.exists(python) and subprocess.run([python, "-c", check]).returncode == 0


def look(prefix: list[str], python: str, package: Path) -> str:
    """Its files are by default for nobody else: what is made for programs must not be."""
    command = [*prefix, python, "-I", "-c", LOOK, str(package.parent)]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", umask=0o077, timeout=300)
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
    seen = look(prefix, SYSTEM_PYTHON, open_copy)
    assert seen == "1000 1000 False ['main.py'] finished timeout timeout finished"


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
