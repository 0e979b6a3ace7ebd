"""The watchdog of a process: shows what it waits for, and tells of waits that are past their deadline.

Consumes the register of waits (`burnish/waits.py`). Leaves in the run folder

    status/<name>.json          every few seconds: process, host, time, step, the longest waits
    status/<name>.starting      the same until the run begins to write its folder, where an earlier one's may lie
    stacks/<time>_<name>.txt    when a wait is past its deadline: where all threads, tasks and workers are

and tells the event `late_wait` and a warning. Waits end themselves then. One that does not, although its thread does
nothing else, is ended with a DeadlineError `GRACE_S` later; that is tried `TRIES` times, `GRACE_S` apart. If it is
still there after that, the process is ended, with exit code `EXIT_CODE`: a run never hangs in silence. With
`BURNISH_WATCHDOG=tell` in the environment nothing is ended, as for a session with a debugger.

Two threads, which live from `start` to `stop`. `watchdog` wakes every second, waits for nothing else and touches no
file. `status` writes the files, and so may hang with the disk; it waits for its next status, or a dump to be written.
What is said to the log is said by a thread of its own, which may hang with the terminal.
"""

import itertools
import json
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from burnish import waits
from burnish.literal import one_line
from burnish.tracking import stacks
from burnish.waits import Wait

LOOK_S = 1.0  # between two looks
STATUS_S = 5.0  # between two status files
GRACE_S = 20.0  # for a wait that is late to end by itself; and then for each try to end it
DUMP_EVERY_S = 20.0  # waits that are late sooner after a dump are not worth another
WORKERS_S = 20.0  # between two looks for dumps of other processes
TRIES = 3  # to end it; an event loop is asked first, and its thread struck if it does not hear
WRITING_S = 5.0  # for the last status to be on disk, and the last words in the log
WITNESSING_S = 15.0  # for a dump to be on disk, with what workers say
SHOWN = 20  # waits in a status file, and events of one dump
KEPT = 20  # dumps of a process
EXIT_CODE = 3
STATUS, STACKS = "status", "stacks"
EARLY = ".starting"  # ends the name of a status
VARIABLE, ONLY_TELL = "BURNISH_WATCHDOG", "tell"

log = logging.getLogger(__name__)

_numbers = itertools.count(1)  # of dumps of this process


class Watchdog:
    """Watches this process, in the run folder as `name`.

    event    writes a line to events.jsonl; None where that is another process's
    stage    how far the run is: "" while the folder may be another's, and only dumps are written; "starting" until it
             begins to write there; "running"
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        event: Callable[..., None] | None = None,
        stage: Callable[[], str] = lambda: "running",
        steps: int | None = None,
    ) -> None:
        self.folder, self.name, self.steps = folder, name, steps
        self.step: int | None = None  # the last that was logged
        self.late = 0  # waits that were
        self._event, self._stage = event, stage
        self._only_tells = os.environ.get(VARIABLE) == ONLY_TELL
        self._started = 0.0
        self._end = ""  # how the run ended
        self._was_early = False  # its last status
        self._stopped = threading.Event()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._telling = threading.Lock()  # for `late` and these two
        self._dumped = (float("-inf"), "")  # when, and the file
        self._events = 0  # of the last dump
        self._known: set[Path] = set()  # dumps of other processes that were told of
        self._looked = float("-inf")  # for them
        self._could_write = True
        self._struck_at: dict[int, float] = {}  # thread → when an error was raised in it
        self._teller_before: Callable[[Wait, bool], str] | None = None

    def start(self) -> None:
        """Begin. Nothing where it has begun already."""
        if self._threads:
            return
        waits.let_main_be_woken()
        self._started, self._end = time.time(), ""
        self._stopped, self._jobs = threading.Event(), queue.SimpleQueue()
        self._teller_before, waits.teller = waits.teller, self.tell
        self._threads = [
            threading.Thread(target=self._watch, name="watchdog", daemon=True),
            threading.Thread(target=self._write, name="status", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, state: str = "done") -> None:
        """End, with a last status that says how the run ended. Nothing where it has not begun.

        state  done, failed or stopped (as by Ctrl-C)
        """
        if not self._threads:
            return
        self._end = state
        waits.teller = self._teller_before
        self._stopped.set()
        self._jobs.put(None)
        for thread in self._threads:
            thread.join(WRITING_S)  # not longer: the disk may hang
        self._threads = []

    def tell(self, wait: Wait, until_written: bool) -> str:
        """A wait is past its deadline: note where everything is. Returns at once, with the file that will say it; or
        `until_written`, of one that was told of before."""
        if until_written:
            self._until_written(WITNESSING_S)
            return wait.stacks
        now = time.monotonic()
        with self._telling:
            self.late += 1
            when, file = self._dumped
            is_fresh = now - when >= DUMP_EVERY_S
            if is_fresh:
                self._dumped, self._events = (now, file := self._file()), 0
            self._events += 1
            has_event = self._events <= SHOWN
        facts = _facts(wait, file)
        if is_fresh:
            self._note(wait, facts)
            self._say(
                logging.WARNING, "%s: waited %.0f s for %s (%s); where all threads are: %s",
                wait.kind, wait.age, wait, wait.limit, file,
            )  # fmt: skip
        if has_event:
            self._tell_event(facts)
        return file

    def _note(self, wait: Wait, facts: Mapping[str, Any]) -> None:
        """Have a dump written of where everything is now: it may be over in a moment."""
        heading, places, file = self._heading(wait, facts), stacks.note(waits.longest()), Path(facts["stacks"])
        self._jobs.put(lambda: self._dump(file, heading + stacks.as_text(places)))

    def _tell_event(self, facts: Mapping[str, Any]) -> None:
        event = self._event
        if event is not None:
            self._jobs.put(lambda: event("late_wait", **facts))

    def _until_written(self, seconds: float) -> None:
        written = threading.Event()
        self._jobs.put(written.set)
        written.wait(seconds)

    def _say(self, level: int, text: str, *about: Any) -> threading.Thread:
        def say() -> None:
            log.log(level, text, *about)

        thread = threading.Thread(target=say, name="watchdog-log", daemon=True)
        with suppress(RuntimeError):  # the process has no room for a thread, or ends
            thread.start()
        return thread

    def status(self, state: str) -> dict[str, Any]:
        """What the status file holds."""
        return {
            "name": self.name,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": self._started,
            "time": time.time(),
            "state": state,
            "step": self.step,
            "steps": self.steps,
            "late": self.late,
            "counts": waits.counts(),
            "waits": [
                {
                    "kind": wait.kind, "owner": wait.owner, "subject": wait.subject, "age": round(wait.age, 1),
                    "limit": wait.seconds,
                }
                for wait in waits.longest(SHOWN)
            ],
        }  # fmt: skip

    # The thread that looks.

    def _watch(self) -> None:
        stopped = self._stopped
        while not stopped.wait(LOOK_S):
            try:
                self._look(waits.ran())
            except Exception as error:  # noqa: BLE001 - the next look may do; told, for there must be one
                self._say(logging.ERROR, "the watchdog could not look at the waits: %r", error)

    def _look(self, now: float) -> None:
        late = [wait for wait in waits.longest() if wait.deadline is not None and now >= wait.deadline]
        for wait in late:
            wait.tell()
        if self._only_tells:
            return
        for thread in {wait.thread for wait in late}:
            self._look_at(thread, [wait for wait in late if wait.thread == thread], now)

    def _look_at(self, thread: int, late: list[Wait], now: float) -> None:
        """At the waits of a thread that are past their deadline: end those that do not end themselves."""
        busy, is_said = waits.at_work(thread), False
        for wait in late:
            if wait.is_only_told or not waits.is_waiting(wait):
                continue
            is_around = wait.task is None and busy is None  # an event loop, in which others wait
            if is_around or busy not in (None, wait):  # it has its time to end itself once the thread is free
                wait.late_since, wait.struck_at, wait.tries = now, None, 0
                continue
            if wait.task is not None and not wait.task.get_loop().is_running():
                continue
            since = max(wait.late_since or now, wait.struck_at or 0.0, self._struck_at.get(thread, 0.0))
            if now < since + GRACE_S:
                continue
            if wait.tries >= TRIES:
                self._give_up(wait)
            if not is_said:  # of thousands that are asked together, the oldest
                self._say(logging.ERROR, "%s: it does not end by itself, so it is ended: %s", wait.kind, wait)
            is_said, is_struck = True, wait.task is None or wait.is_deaf
            wait.end()
            if is_struck:  # of several that wait in a thread that is blocked, one error unblocks them all
                self._struck_at[thread] = now
                for other in late:
                    if other is not wait:
                        other.struck_at = None  # what its loop was asked does not count any more
                return

    def _give_up(self, wait: Wait) -> None:
        try:
            self._end = "failed"
            facts = {**_facts(wait, self._file()), "exit_code": EXIT_CODE}
            self._note(wait, facts)
            self._tell_event(facts)
            self._jobs.put(self._write_status)
            said = self._say(
                logging.CRITICAL,
                "%s: %s waits for %s since %.0f s, and nothing can end it. This process is ended (exit code %d); where "
                "all threads were: %s",
                wait.kind, wait.owner, wait.subject, wait.age, EXIT_CODE, facts["stacks"],
            )  # fmt: skip
            self._until_written(WITNESSING_S)
            said.join(WRITING_S)
        finally:
            os._exit(EXIT_CODE)

    # The thread that writes.

    def _write(self) -> None:
        next_status = time.monotonic()
        while True:
            try:
                job = self._jobs.get(timeout=max(0.0, next_status - time.monotonic()))
            except queue.Empty:
                job, next_status = self._write_status, time.monotonic() + STATUS_S
            try:
                (job or self._write_status)()
            except Exception as error:  # noqa: BLE001 - the run goes on without its status; told, not raised
                level = logging.WARNING if self._could_write else logging.DEBUG
                self._could_write = False
                self._say(level, "the watchdog cannot write in %s: %s", self.folder, error)
            if job is None:
                return

    def _write_status(self) -> None:
        is_time = bool(self._end) or time.monotonic() >= self._looked + WORKERS_S
        if self._event is not None and waits.witnesses and is_time:
            self._looked = time.monotonic()
            self._tell_of_workers(self._event)
        folder, stage = self.folder / STATUS, self._stage()
        early = folder / f"{self.name}{EARLY}"
        said = json.dumps(self.status(self._end or stage), indent=1) + "\n"
        if stage == "starting" and not self._end:
            self._was_early = True
            _replace(early, said)
            return
        if stage == "running":
            _replace(folder / f"{self.name}.json", said)
        if self._was_early:
            early.unlink(missing_ok=True)
            self._was_early = False
            with suppress(OSError):  # it is not empty, unless the run ends before it began
                folder.rmdir()

    def _tell_of_workers(self, event: Callable[..., None]) -> None:
        """The dumps that other processes of the run have written since the last look, as events."""
        for file in sorted(set((self.folder / STACKS).glob("*.txt")) - self._known):
            self._known.add(file)
            with suppress(OSError, ValueError, IndexError):  # it is gone by now, or is not one of ours
                if _process(file) != self.name and file.stat().st_mtime >= self._started:
                    facts = json.loads(file.read_text(encoding="utf-8").split("\n", 3)[2])
                    event("late_wait", **facts, process=_process(file))

    def _dump(self, file: Path, text: str) -> None:
        """The stacks of this process at once, and then what its workers say, for which they have some seconds."""
        _replace(file, text)
        told = "".join(f"\n{witness()}" for witness in list(waits.witnesses))
        if told:
            _replace(file, text + told)
        own = [dump for dump in file.parent.glob("*.txt") if _process(dump) == self.name]
        for old in sorted(own)[:-KEPT]:
            old.unlink(missing_ok=True)

    def _file(self) -> str:
        """A name that no other dump has: nothing is looked up, because the disk may hang. Later ones sort behind it."""
        number = f"{os.getpid()}-{next(_numbers):06}"
        return str(self.folder / STACKS / f"{time.strftime('%Y%m%d-%H%M%S')}-{number}_{self.name}.txt")

    def _heading(self, wait: Wait, facts: Mapping[str, Any]) -> str:
        others = [f"  {one.age:7.1f} s  {one.kind}: {one_line(str(one))}" for one in waits.longest(SHOWN)]
        return (
            f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self.name}, pid {os.getpid()} on {socket.gethostname()}\n"
            f"late: {wait.kind}: {one_line(str(wait))} has waited {wait.age:.1f} s ({wait.limit})\n"
            f"{json.dumps(facts, ensure_ascii=False)}\n"
            f"waits of this process, the longest first:\n" + "\n".join(others) + "\n\n"
        )


def _facts(wait: Wait, file: str) -> dict[str, Any]:
    return {
        "wait": wait.kind, "owner": wait.owner, "subject": wait.subject, "waited_s": round(wait.age, 1),
        "limit_s": wait.seconds, "stacks": file,
    }  # fmt: skip


def _process(dump: Path) -> str:
    """Whose it is, by its name."""
    return dump.stem.partition("_")[2]


def _replace(path: Path, text: str) -> None:
    """Write a file so that readers see it whole. Not synced: it is of no use after a power failure."""
    temporary = path.with_name(f".{path.name}.writing")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    os.replace(temporary, path)
