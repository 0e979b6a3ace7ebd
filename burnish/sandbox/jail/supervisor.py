"""The supervisor process: started by local.py, which sends it programs (burnish/child).

Consumes calls, each with a program's limits, source and standard input, and answers with its outcome; a CANCEL ends
the program. One loop serves all programs. It waits for: calls, what programs write and their first processes say, the
end of child processes, and the next look at what a program uses. It leaves when its parent does, which ends all
programs: its pipe ends, or its parent's id changes, should something that the parent started hold that pipe open.

Seconds of a program (`Running`) count in two ways, and either may run out: those that the whole tree has computed, and
those of the clock less the waiting for a busy core, of which there is no more than what runs outside of the tree can
cause (cores.py). A program that has seconds left after many times as long was not given a core, which is the machine's
fault: that is `failed`, not `timeout`.
"""

import json
import os
import pickle
import resource
import selectors
import signal
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from burnish.child.frames import ANSWER, CALL, FrameBuffer, frame, json_bytes, private_pipes
from burnish.sandbox import Limits, Status
from burnish.sandbox.jail.launch import Jail, Launcher, Tree, Unsafe
from burnish.sandbox.jail.linux import refuses, said
from burnish.sandbox.jail.usage import Usage, kills_for_memory

OPEN_FILES = 4096  # at most; every new process closes all numbers below this
FILES_OF_ONE, FILES_OF_OURS = 8, 64  # descriptors while a program is started, and those that are always open
LOOKING_SECONDS = 0.05  # of computing, until what programs say is heard again
ORPHAN_SECONDS = 5.0  # between two looks at the parent's id

SETUP_SECONDS = 60.0
PATIENCE = 10  # times its seconds of the clock for a program, and more where programs share cores
LONGEST_PAUSE, SHORTEST_PAUSE = 0.1, 0.01  # seconds between two looks
COSTLY_PAUSE, EXACT_PAUSE = 0.2, 1.0  # at most, between looks that take us long, plain and exact
FILL_RATE = 4 * 2**30  # bytes of memory that a program can take in a second on one core
CHUNK = 2**16

Failure: TypeAlias = dict[str, object]


def main(argument: str) -> None:
    """`argument`, in JSON: the parent's id, whether to isolate, the Python that runs programs, and where it is."""
    parent, isolated, executable, folders = json.loads(argument)
    reading, writing = private_pipes()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, OPEN_FILES), most))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # of our parent's too, programs would inherit what is blocked
    os.umask(0o022)  # what is made for programs must be theirs to read
    launcher: Launcher | Failure
    try:
        launcher = Jail(executable, tuple(folders)) if isolated else Unsafe(executable)
    except Exception as error:  # noqa: BLE001  whatever it is, whoever sends us programs gets it
        launcher = _failure(error)
    Supervisor(reading, writing, launcher, parent).serve()


class Supervisor:
    """Where programs cannot be launched, `launcher` is the reason every caller gets."""

    def __init__(self, reading: int, writing: int, launcher: Launcher | Failure, parent: int):
        self._reading, self._writing, self._launcher, self._parent = reading, writing, launcher, parent
        self._frames, self._unsent = FrameBuffer(), bytearray()
        self._waiting: deque[tuple[int, bytes]] = deque()  # programs while there are as many as there can be
        self._places = max((resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_OF_OURS) // FILES_OF_ONE, 1)
        self._running: dict[int, Running] = {}  # by their first process
        self._selector = selectors.DefaultSelector()
        for descriptor in (reading, writing):
            os.set_blocking(descriptor, False)
        self._selector.register(reading, selectors.EVENT_READ, self._hear)
        # Wake at the end of child processes.
        listen, wake = socket.socketpair()
        listen.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._selector.register(listen, selectors.EVENT_READ, partial(listen.recv, 4096))

    def serve(self) -> None:
        while os.getppid() == self._parent:
            next_look = min((running.next_look for running in self._running.values()), default=float("inf"))
            can_begin = self._waiting and len(self._running) < self._places
            pause = 0 if can_begin else min(max(next_look - time.monotonic(), 0), ORPHAN_SECONDS)
            for key, _ in self._selector.select(pause):
                key.data()
            self._reap()
            if self._waiting and len(self._running) < self._places:  # one, then hear those that run again
                self._begin(*self._waiting.popleft())
            # Look at the programs whose time it is, the most overdue first; not for so long that others must wait.
            end = time.thread_time() + LOOKING_SECONDS
            for running in sorted(self._running.values(), key=lambda running: running.next_look):
                if time.thread_time() > end:
                    break
                running.check(time.monotonic(), len(self._running))
        self._leave()

    def _hear(self) -> None:
        try:
            data = os.read(self._reading, 2**18)
        except BlockingIOError:
            return
        if not data:
            self._leave()
        for number, kind, payload in self._frames.feed(data):
            if kind == CALL:
                self._waiting.append((number, payload))
                continue
            self._waiting = deque(each for each in self._waiting if each[0] != number)
            for running in self._running.values():
                if running.number == number:
                    running.end("failed", "cancelled")

    def _begin(self, number: int, payload: bytes) -> None:
        if isinstance(self._launcher, dict):
            self._answer(number, self._launcher)
            if not self._launcher["refused"]:
                self._leave()  # another supervisor may have more luck
            return
        limits, source, stdin = pickle.loads(payload)  # noqa: S301  from the parent, through a private pipe
        try:
            tree = self._launcher.start(limits, source, stdin)
            self._running[tree.first] = running = Running(number, limits, self._launcher, tree)
            running.watch(self._selector)
        except OSError as error:
            self._answer(number, _failure(error))

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._running:
                running = self._running.pop(pid)
                self._answer(running.number, running.reaped())

    def _answer(self, number: int, outcome: dict[str, object]) -> None:
        """Send what can be sent now, and the rest when the parent takes it."""
        if not self._unsent:
            self._selector.register(self._writing, selectors.EVENT_WRITE, self._send)
        self._unsent += frame(number, ANSWER, json_bytes(outcome))
        self._send()

    def _send(self) -> None:
        try:
            del self._unsent[: os.write(self._writing, self._unsent)]
        except BlockingIOError:
            return
        except OSError:  # the parent has died, which we will notice
            self._unsent.clear()
        if not self._unsent:
            self._selector.unregister(self._writing)

    def _leave(self) -> None:
        for running in self._running.values():
            running.end("failed", "the supervisor ends")
        while self._running:
            with suppress(ChildProcessError):
                pid = os.wait()[0]
                if pid in self._running:
                    self._running.pop(pid).reaped()
        os.set_blocking(self._writing, True)
        while self._unsent:
            self._send()
        sys.exit()


class Output:
    """What was written to one pipe, up to a byte more than may be."""

    def __init__(self, descriptor: int, limit: int):
        self.descriptor, self.limit, self.content, self.ended = descriptor, limit, bytearray(), False

    @property
    def too_much(self) -> bool:
        return len(self.content) > self.limit

    def take(self) -> None:
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
        self.usage = Usage(launcher.proc, tree.first, launcher.socket_bytes)
        self.next_look = time.monotonic() + SETUP_SECONDS
        self.begin: float | None = None  # of its clock
        self.verdict: Status | None = None  # ours, where we ended it
        self.reason, self.refused = "", False  # as in Outcome
        self.spent = 0.0  # of its seconds
        self.exit_code: int | None = None
        self._heard = b""
        self._cost = self._costs = 0.0  # seconds of the last look, and of all
        self._idle_before: list[float] = []  # of the cores, when its clock began
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
        self._costs += self._cost
        self.next_look = now + self._pause()
        seconds, most = self.limits.seconds, self.limits.memory_mb * 2**20
        if self.spent >= seconds:
            self.end("timeout")
        elif self.usage.memory > most and self._exact_memory(now) > most:
            self.end("memory")
        elif self.usage.tasks > self.limits.processes:  # where the kernel does not count them for us
            self.end("finished")
            self.exit_code = -signal.SIGKILL
        elif elapsed >= seconds * (PATIENCE + 2 * crowd / self.launcher.cores.count) + SETUP_SECONDS:
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
        ending = {"status": status, "exit_code": exit_code, "reason": self.reason, "refused": self.refused}
        return ending | {"stdout": stdout, "stderr": stderr, "seconds": self.spent}

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
                self._idle_before = self.launcher.cores.idle(self.begin)
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
        cores, elapsed = self.launcher.cores, until - self.begin
        own = self.usage.computed + self.usage.computed_by_first + self._costs
        lots = zip(cores.counts, cores.idle(now), self._idle_before, strict=True)
        outside = sum(max(now - self.begin - (idle - before + own) / count, 0.0) for count, idle, before in lots)
        self.spent = max(elapsed - min(self.usage.waited, outside), self.usage.computed)
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
        cores = min(max(self.usage.tasks, 1), self.launcher.cores.count)
        memory = (self.limits.memory_mb * 2**20 - self.usage.memory) / (FILL_RATE * cores)
        computing = (self.limits.seconds - self.usage.computed) / cores
        soonest = max(min(memory, LONGEST_PAUSE), min(10 * self._cost, COSTLY_PAUSE))
        return max(min(soonest, computing, self.limits.seconds - self.spent), SHORTEST_PAUSE)


def _failure(error: BaseException) -> Failure:
    return {"status": "failed", "reason": said(error), "refused": refuses(error)}
