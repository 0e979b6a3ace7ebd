"""Programs on this machine, isolated by the kernel: `await LocalSandbox().run(program, limits)`.

A sandbox owns one supervisor process (child.py), started for the first program. `run` sends it the program with one end
of a socket pair, waits for the answer at the other end, and closes that, which ends the program if it still runs. So it
can be called from any thread and any event loop, many times at once. It waits for the answer or the supervisor's end.
"""

import asyncio
import logging
import os
import socket
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from burnish.sandbox.child import Supervisor
from burnish.sandbox.jail.wire import pack_limits, sealed_file, unpack_outcome
from burnish.sandbox.program import Limits, Outcome, Program
from burnish.sandbox.refusal import how_to_permit, how_to_repair

logger = logging.getLogger(__name__)

BUSY_SECONDS = 0.01  # until a supervisor that has too many requests waiting is asked again
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


class LocalSandbox:
    """`allow_unsafe`: where this machine permits no isolation, run programs under limits alone."""

    def __init__(self, allow_unsafe: bool = False):
        self._allow_unsafe = allow_unsafe
        self._supervisors: dict[bool, Supervisor] = {}  # isolated or not
        self._starting = threading.Lock()
        weakref.finalize(self, _close_all, self._supervisors)
        self._refusal: Outcome | None = None
        self._probed = False

    async def run(self, program: Program, limits: Limits) -> Outcome:
        failure = await self._failure() if self._allow_unsafe else None
        if failure is not None and not failure.refused:
            return failure
        return await self._run(program, limits, isolated=failure is None)

    async def why_not(self) -> str | None:
        failure = await self._failure()
        if failure is None or (failure.refused and self._allow_unsafe and sys.platform == "linux"):
            return None
        return how_to_permit(failure.reason) if failure.refused else how_to_repair(failure.reason)

    def close(self) -> None:
        """End the supervisors with all programs. Otherwise that happens when the sandbox is no longer in use."""
        with self._starting:
            _close_all(self._supervisors)

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
        try:
            with socket_pair() as (ours, theirs):
                await self._send(program, limits, theirs, isolated)
                outcome = unpack_outcome(await received(ours))
        except OSError as error:
            return Outcome("failed", reason=f"the sandbox's supervisor could not be reached: {error}")
        return outcome or Outcome("failed", reason="the sandbox's supervisor died")

    async def _send(self, program: Program, limits: Limits, theirs: socket.socket, isolated: bool) -> None:
        files = [theirs.detach()]
        try:
            files += [sealed_file("source", program.source)]
            files += [sealed_file("stdin", program.stdin)]
            while not self._supervisor(isolated).takes(pack_limits(limits), files):
                await asyncio.sleep(BUSY_SECONDS)
        finally:
            for descriptor in files:
                os.close(descriptor)

    def _supervisor(self, isolated: bool) -> Supervisor:
        with self._starting:
            found = self._supervisors.get(isolated)
            if found is None or not found.usable:
                if found is not None:
                    found.close()
                found = self._supervisors[isolated] = Supervisor(isolated)
            return found


def _close_all(supervisors: dict[bool, Supervisor]) -> None:
    for supervisor in supervisors.values():
        supervisor.close()
    supervisors.clear()


@contextmanager
def socket_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Our end for the answer, and the supervisor's. Leaving it ends the program."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        try:
            yield ours, theirs
        finally:
            with suppress(OSError):  # the supervisor has closed its end
                ours.shutdown(socket.SHUT_RDWR)  # closing is not enough where a forked process has it too


async def received(connection: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    content = bytearray()
    while chunk := await loop.sock_recv(connection, 2**18):
        content += chunk
    return bytes(content)
