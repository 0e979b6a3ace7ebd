"""One program as the supervisor sees it: from its start, through looks at what it uses, to the answer.

Its clock starts when its tree is set up. Seconds count in two ways, and either may run out: those that the whole tree
has computed, and those of the clock less the waiting for a busy core. A program that has seconds left after many times
as long was not given a core, which is the machine's fault and not its own: that is `failed`, not `timeout`.
"""

import json
import os
import selectors
import signal
import socket
import time
from contextlib import suppress
from functools import partial

from burnish.sandbox.jail.launch import Launcher, Tree
from burnish.sandbox.jail.usage import Usage, kills_for_memory
from burnish.sandbox.program import Limits, Status

SETUP_SECONDS = 60.0
PATIENCE = 10  # times its seconds of the clock for a program, and more where programs share cores
CORES = len(os.sched_getaffinity(0))
LONGEST_PAUSE, SHORTEST_PAUSE = 0.1, 0.01  # seconds between two looks
COSTLY_PAUSE, EXACT_PAUSE = 0.2, 1.0  # at most, between looks that take us long, plain and exact
FILL_RATE = 4 * 2**30  # bytes of memory that a program can take in a second on one core
CHUNK = 2**16


class Output:
    """What was written to one pipe, up to a byte more than may be."""

    def __init__(self, descriptor: int, limit: int):
        self.descriptor, self.limit, self.content, self.ended = descriptor, limit, bytearray(), False

    @property
    def too_much(self) -> bool:
        return len(self.content) > self.limit

    def take(self) -> None:
        """Read what is there."""
        while not self.ended and not self.too_much:
            try:
                chunk = os.read(self.descriptor, min(CHUNK, self.limit + 1 - len(self.content)))
            except BlockingIOError:
                return
            self.content += chunk
            self.ended = not chunk


class Running:
    """A program that was started. The supervisor calls `check` from time to time and `reaped` at the end."""

    def __init__(self, number: int, limits: Limits, launcher: Launcher, tree: Tree):
        self.number, self.limits, self.launcher, self.tree = number, limits, launcher, tree
        self.outputs = [Output(descriptor, limits.output_bytes) for descriptor in (tree.stdout, tree.stderr)]
        self.usage = Usage(launcher.proc, tree.first)
        self.next_look = time.monotonic() + SETUP_SECONDS
        self.begin: float | None = None  # of its clock
        self.verdict: Status | None = None  # ours, where we ended it
        self.reason, self.refused = "", False  # as in Outcome
        self.spent = 0.0  # of its seconds
        self.exit_code: int | None = None
        self._heard = b""
        self._cost = 0.0  # seconds of the last look
        self._next_exact_look = 0.0
        self._gone = False
        self._killed_before = kills_for_memory(launcher.proc)

    def watch(self, selector: selectors.BaseSelector) -> None:
        """From now on call us when there is something to read. `selector`'s data are functions to call."""
        self._selector = selector
        for output in self.outputs:
            selector.register(output.descriptor, selectors.EVENT_READ, partial(self._take, output))
        selector.register(self.tree.channel, selectors.EVENT_READ, self._hear)

    def end(self, verdict: Status, reason: str = "", refused: bool = False) -> None:
        """End the tree, unless it is already ending. What it had written stays."""
        if self.verdict is None and self.exit_code is None:
            self.verdict, self.reason, self.refused = verdict, reason, refused
            self._end_tree()

    def check(self, now: float, crowd: int) -> None:
        """Look at what it uses, if it is time to, and end it where that is too much. `crowd`: programs running."""
        if now < self.next_look:
            return
        self._hear()  # it may have ended since
        if now < self.next_look:
            return
        if self.begin is None:
            self.end("failed", f"it was not set up within {SETUP_SECONDS:g} s")
            return
        computing = time.thread_time()
        elapsed = self._look(now, now)
        self._cost = time.thread_time() - computing
        self.next_look = now + self._pause()
        seconds, most = self.limits.seconds, self.limits.memory_mb * 2**20
        if self.spent >= seconds:
            self.end("timeout")
        elif self.usage.memory > most and self._exact_memory(now) > most:
            self.end("memory")
        elif self.usage.tasks > self.limits.processes:  # where the kernel does not count them for us
            self.end("finished")
            self.exit_code = -signal.SIGKILL
        elif elapsed >= seconds * (PATIENCE + 2 * crowd / CORES) + SETUP_SECONDS:
            given = f"{elapsed:.0f} s gave it {self.usage.computed:.1f} s of a core"
            self.end("failed", f"the machine is too busy: {given}. Run fewer programs at a time")

    def reaped(self) -> dict[str, object]:
        """The first process has ended, and the tree with it: clean up. The fields of its Outcome."""
        self._gone = True
        self._hear()
        for output in self.outputs:
            output.take()
            self._forget(output.descriptor)
        self._forget(self.tree.channel)
        self.launcher.cleaned(self.tree)
        status, exit_code = self._outcome()
        stdout, stderr = (output.content[: output.limit].decode("utf-8", "replace") for output in self.outputs)
        why = {"reason": self.reason, "refused": self.refused}
        return {
            "status": status,
            "exit_code": exit_code,
            "stdout": stdout,
            "stderr": stderr,
            "seconds": self.spent,
        } | why

    def _outcome(self) -> tuple[Status, int | None]:
        if self.verdict is None and any(output.too_much for output in self.outputs):
            self.verdict = "output"
        if self.verdict is not None:
            return self.verdict, self.exit_code if self.verdict == "finished" else None
        if self.exit_code == -signal.SIGKILL and self.usage.computed >= self.limits.seconds:
            return "timeout", None  # the kernel was quicker than we
        killed = self.exit_code in (None, -signal.SIGKILL)
        if killed and kills_for_memory(self.launcher.proc) > self._killed_before:
            self.reason = "the machine ran out of memory, and it was killed for that"
            return "failed", None
        if self.exit_code is None and self.launcher.isolated:
            self.reason = "its first process was killed from outside"
            return "failed", None
        if self.exit_code is None:  # it has killed its first process itself
            return "finished", -signal.SIGKILL
        return "finished", self.exit_code

    def _take(self, output: Output) -> None:
        output.take()
        if output.too_much:
            self.end("output")
        if output.ended or output.too_much:
            self._forget(output.descriptor)

    def _hear(self) -> None:
        """What the first process says (inside.py)."""
        try:
            heard = self.tree.channel.recv(CHUNK)
        except BlockingIOError:
            return
        except ConnectionResetError:
            heard = b""
        if not heard:
            self._forget(self.tree.channel)
        *lines, self._heard = (self._heard + heard).split(b"\n")
        for line in lines:
            facts = json.loads(line)
            if "failed" in facts:
                self.end("failed", facts["failed"], facts["refused"])
            elif "exit_code" in facts:
                self._look(time.monotonic(), facts["ended"])
                self.exit_code = facts["exit_code"]
                self._end_tree()
            else:
                self.begin = facts["started"]
                self.usage.look(time.monotonic())
                self.next_look = time.monotonic() + self._pause()

    def _forget(self, watched: int | socket.socket) -> None:
        with suppress(KeyError):
            self._selector.unregister(watched)

    def _end_tree(self) -> None:
        self.next_look = float("inf")
        if not self._gone:  # otherwise its number may be someone else's by now
            self.launcher.end(self.tree)

    def _look(self, now: float, until: float) -> float:
        """What it has used of its seconds `until` then. The seconds since it began."""
        assert self.begin is not None
        self.usage.look(now)
        elapsed = until - self.begin
        self.spent = max(elapsed - self.usage.waited, self.usage.computed)
        return elapsed

    def _exact_memory(self, now: float) -> int:
        """Nothing, while the last time that this was asked was too short ago for what it costs."""
        if now < self._next_exact_look:
            return 0
        computing = time.thread_time()
        memory = self.usage.exact_memory()
        self._next_exact_look = now + min(10 * (time.thread_time() - computing), EXACT_PAUSE)
        return memory

    def _pause(self) -> float:
        """Until something could be used up. Where a look takes us long we wait longer for memory, but not for seconds,
        which run out at a moment that is known."""
        cores = min(max(self.usage.tasks, 1), CORES)
        memory = (self.limits.memory_mb * 2**20 - self.usage.memory) / (FILL_RATE * cores)
        computing = (self.limits.seconds - self.usage.computed) / cores
        soonest = max(min(memory, LONGEST_PAUSE), min(10 * self._cost, COSTLY_PAUSE))
        return max(min(soonest, computing, self.limits.seconds - self.spent), SHORTEST_PAUSE)
