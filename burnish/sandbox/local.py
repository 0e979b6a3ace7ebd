"""Programs on this machine, isolated by the kernel: `await LocalSandbox().run(program, limits)`.

A sandbox owns one supervisor process (jail/supervisor.py), started for the first program, and a thread that talks to it
(burnish/child). So it can be called from any thread and any event loop, many times at once; a call that is cancelled
ends its program. It waits for the outcome or the supervisor's end.
"""

import asyncio
import json
import logging
import os
import pickle
import sys
import threading
import weakref
from typing import Any

from burnish.child.process import ChildDied, ChildKilled, ChildProcess
from burnish.loop_thread import LoopThread
from burnish.sandbox import Limits, Outcome, Program

logger = logging.getLogger(__name__)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # where burnish is imported from
#: The supervisor's program: burnish's folder goes last, so that nothing in there stands in for the standard library.
START = "import sys; sys.path.append(sys.argv[1]); from burnish.sandbox.jail.supervisor import main; main(sys.argv[2])"
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG")  # of the environment; programs get none of it
LEAVE_SECONDS = 10.0
TRIES, RETRY_SECONDS = 3, 0.2  # of the probe: a machine that is short of something for a moment has not refused
PROBE_LIMITS = Limits(seconds=30.0)
PROBE = """
import os, socket

assert os.getuid() == 1000 and os.getppid() == 1 and not os.path.exists("/proc/self"), "namespaces"
for attempt in (lambda: socket.socket(socket.AF_INET), lambda: open("/usr/probe", "w"), lambda: os.setuid(0)):
    try:
        attempt()
    except OSError:
        continue
    raise AssertionError("rights")
print("isolated")
"""
FIXES = """\
  - an ordinary user: sysctl kernel.unprivileged_userns_clone=1 (Debian), \
sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), or a larger sysctl user.max_user_namespaces
  - a container: docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined, \
or --cap-add SYS_ADMIN --security-opt apparmor=unconfined
  - another machine: a SandboxFusion server, reward_model.sandbox.url=http://host:8080/run_code
  - at your own risk: reward_model.sandbox.allow_unsafe=true runs programs without isolation, under limits alone"""
SWITCHES = {
    "/proc/sys/kernel/unprivileged_userns_clone": "0",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
    "/proc/sys/user/max_user_namespaces": "0",
}


class LocalSandbox:
    """`allow_unsafe`: where this machine permits no isolation, run programs under limits alone."""

    def __init__(self, allow_unsafe: bool = False):
        self._allow_unsafe = allow_unsafe
        self._supervisors = self._new_supervisors()
        self._refusal: Outcome | None = None
        self._probed = False

    async def run(self, program: Program, limits: Limits) -> Outcome:
        failure = await self._failure() if self._allow_unsafe else None
        if failure is not None and not failure.refused:
            return failure
        return await self._run(program, limits, isolated=failure is None)

    async def unavailable_reason(self) -> str | None:
        failure = await self._failure()
        if failure is None or (failure.refused and self._allow_unsafe and sys.platform == "linux"):
            return None
        if failure.refused:
            return how_to_permit(failure.reason)
        advice = "This may pass: try again"
        if os.geteuid() == 0:  # then programs are `nobody`
            advice += f". Everyone must be able to read the Python that runs here: chmod -R a+rX {sys.prefix}"
            advice += ", and chmod a+x the folders above it"
        return f"programs cannot be run in the sandbox: {failure.reason}. {advice}"

    def close(self) -> None:
        """End the supervisors with all programs. Otherwise that happens when the sandbox is no longer in use."""
        old, self._supervisors = self._supervisors, self._new_supervisors()
        old.close()

    def _new_supervisors(self) -> "_Supervisors":
        supervisors = _Supervisors()
        weakref.finalize(self, supervisors.close)
        return supervisors

    async def _failure(self) -> Outcome | None:
        """Why programs cannot be isolated, found out by one that looks around: once, unless it is a passing fault."""
        failure = None
        for _ in range(TRIES):
            if self._probed:
                return self._refusal
            failure = await self._probe()
            if failure is None:
                break
            await asyncio.sleep(RETRY_SECONDS)
        if failure is not None and not failure.refused:
            return failure
        if not self._probed:  # as several may have asked at once
            self._probed, self._refusal = True, failure
            if failure is not None and self._allow_unsafe:
                logger.warning("model-written programs run WITHOUT isolation, under limits alone: %s", failure.reason)
        return self._refusal

    async def _probe(self) -> Outcome | None:
        outcome = await self._run(Program(PROBE), PROBE_LIMITS, isolated=True)
        if outcome.status == "failed":
            return outcome
        if outcome.succeeded and outcome.stdout == "isolated\n":
            return None
        reason = (outcome.stderr.strip() or f"a small program ended as {outcome.status}").splitlines()[-1]
        return Outcome("failed", reason=reason, refused=reason.startswith("AssertionError"))

    async def _run(self, program: Program, limits: Limits, isolated: bool) -> Outcome:
        if sys.platform != "linux":
            return Outcome("failed", reason=f"it needs Linux, and this is {sys.platform}", refused=True)
        if self._supervisors.owner != os.getpid():  # this is a fork of their parent
            self._supervisors = self._new_supervisors()
        payload = pickle.dumps((limits, program.source, program.stdin))
        running = self._supervisors.thread.run(self._supervisors.run(payload, isolated))
        try:
            return Outcome(**await asyncio.wrap_future(running))
        except ChildDied as death:
            return Outcome("failed", reason=str(death))
        except (ChildKilled, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # it is the caller that was cancelled
                raise
            return Outcome("failed", reason="the sandbox was closed")


class _Supervisors:
    """The supervisor processes of one sandbox, isolated or not, and the thread that talks to them. They end with this
    process, or when their pipes are closed, and then so do all their programs."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.children: dict[bool, ChildProcess] = {}
        self.thread = LoopThread("the sandbox", self._end_all, "burnish-sandbox", "reward", 2 * LEAVE_SECONDS)
        self._starting = asyncio.Lock()
        self._ident = 0  # of the thread

    async def run(self, payload: bytes, isolated: bool) -> Any:
        self._ident = threading.get_ident()
        async with self._starting:
            found = self.children.get(isolated)
            if found is None or not found.alive:
                if found is not None:
                    await found.kill()
                setting = json.dumps([self.owner, isolated, sys.executable, python_folders()])
                found = self.children[isolated] = await ChildProcess.start(
                    "the sandbox's supervisor",
                    [sys.executable, "-I", "-S", "-c", START, ROOT, setting],
                    cwd="/",
                    env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
                )
        return await found.call(payload, None, can_cancel=True)

    async def _end_all(self) -> None:
        await asyncio.gather(*(child.close(LEAVE_SECONDS) for child in self.children.values()))

    def close(self) -> None:
        """From any thread: the garbage collector, too, may call it, and in the thread that it ends."""
        if threading.get_ident() == self._ident:
            threading.Thread(target=self.thread.close, daemon=True).start()
        else:
            self.thread.close()


def python_folders() -> tuple[str, ...]:
    """Where the running Python and its packages are, also behind links."""
    folders = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    path = sys.executable
    while os.path.islink(path):
        path = os.path.join(os.path.dirname(path), os.readlink(path))
        folders.append(os.path.dirname(os.path.dirname(path)))
    folders += [os.path.realpath(folder) for folder in folders]
    return tuple(dict.fromkeys(os.path.normpath(folder) for folder in folders))


def how_to_permit(reason: str) -> str:
    """For a machine that permits no isolation: what was refused, and every way out."""
    found = []
    for path, value in SWITCHES.items():
        if os.path.exists(path):
            with open(path) as file:
                if file.read().strip() == value:
                    found.append(f"{path.removeprefix('/proc/sys/').replace('/', '.')}={value}")
    seen = f" ({', '.join(found)} is set here)" if found else ""
    return f"this machine does not let programs be isolated: {reason}{seen}. Ways out:\n{FIXES}"
