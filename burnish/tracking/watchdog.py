"""The watchdog of a process: shows what it waits for, reports late waits, and ends a process that hangs
(docs/status.md).

Consumes the register of waits (`burnish/waits.py`); writes status/<name>.json (`.starting` until the run begins to
write its folder) and, when a wait is past its deadline, stacks/<time>_<name>.txt. A wait that is still there `GRACE_S`
after its deadline, although its thread does nothing else, means that the process hangs: it exits with `EXIT_CODE`, or
starts the command again (`on_hang`).

Two threads, from `start` to `stop`: `watchdog` wakes every second and touches no file; `status` writes the files, and
so may hang with the disk. Each message to the log has its own thread, which may hang with the terminal.
"""

import itertools
import json
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from burnish import waits
from burnish.errors import DeadlineError
from burnish.literal import one_line
from burnish.tracking import stacks
from burnish.tracking.failure import write_failure
from burnish.waits import EXIT_CODE, Wait, limit_in_words

LOOK_S = 1.0  # between two looks
STATUS_S = 5.0  # between two status files
GRACE_S = 60.0  # for a wait that is late to end on its own
DUMP_EVERY_S = 20.0  # waits that are late sooner after a dump get no other one
WORKERS_S = 20.0  # between two looks for dumps of other processes
WRITING_S = 5.0  # for the last status to be on disk, and the last message in the log
DUMP_S = 15.0  # for a dump to be on disk, with what workers report
SHOWN = 20  # waits in a status file, and events of one dump
KEPT = 20  # dumps of a process
STATUS, STACKS = "status", "stacks"
EARLY = ".starting"  # ends the name of a status

log = logging.getLogger(__name__)

_numbers = itertools.count(1)  # of dumps of this process


class Watchdog:
    """Watches this process, in the run folder as `name`.

    event    writes a line to events.jsonl; None where that is another process's
    stage    how far the run is: "" while the folder may be another's, and only dumps are written; "starting" until it
             begins to write there; "running"
    on_hang  given why the process hangs, returns what happens now, in words, and the function that does it; afterwards,
             and by default, the process exits. Must not touch the disk.
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
        self.late = 0  # waits so far
        self.on_hang: Callable[[str], tuple[str, Callable[[], None]]] | None = None
        self._event, self._stage = event, stage
        self._started = 0.0
        self._end = ""  # how the run ended
        self._was_early = False  # its last status
        self._stopped = threading.Event()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._reporting = threading.Lock()  # for `late` and these two
        self._dumped = (float("-inf"), "")  # when, and the file
        self._events = 0  # of the last dump
        self._known: set[Path] = set()  # dumps of other processes that were reported
        self._looked = float("-inf")  # for them
        self._could_write = True
        self._reporter_before: Callable[[Wait, bool], str] | None = None

    def start(self) -> None:
        """Begin. Nothing where it has begun already."""
        if self._threads:
            return
        self._started, self._end = time.time(), ""
        self._stopped, self._jobs = threading.Event(), queue.SimpleQueue()
        self._reporter_before, waits.reporter = waits.reporter, self.report
        self._threads = [
            threading.Thread(target=self._watch, name="watchdog", daemon=True),
            threading.Thread(target=self._write, name="status", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, state: str = "done") -> None:
        """End, with a last status: done, failed or stopped (as by Ctrl-C). Nothing where it has not begun."""
        if not self._threads:
            return
        self._end = state
        waits.reporter = self._reporter_before
        self._stopped.set()
        self._jobs.put(None)
        for thread in self._threads:
            thread.join(WRITING_S)  # not longer: the disk may hang
        self._threads = []

    def report(self, wait: Wait, until_written: bool) -> str:
        """A wait is late: have a dump, an event and a warning written. Returns at once, with the file of the dump; or,
        `until_written`, of one that was reported before, when that is complete."""
        if until_written:
            self._until_written()
            return wait.stacks
        now = time.monotonic()
        with self._reporting:
            self.late += 1
            when, file = self._dumped
            is_new = now - when >= DUMP_EVERY_S
            if is_new:
                self._dumped, self._events = (now, file := self._file()), 0
            self._events += 1
            has_event = self._events <= SHOWN
        if is_new:
            self._log(logging.WARNING, "%s; where all threads are: %s", _waited(wait), file)
        self._queue_dump(wait, file, has_dump=is_new, has_event=has_event)
        return file

    def _queue_dump(self, wait: Wait, file: str, has_dump: bool = True, has_event: bool = True, **more: Any) -> None:
        """Note where everything is now, for it may be over in a moment; the other thread writes it."""
        facts = {
            "wait": wait.kind, "owner": wait.owner, "subject": wait.subject, "waited_s": round(wait.age, 1),
            "limit_s": wait.seconds, "stacks": file, **more,
        }  # fmt: skip
        if has_dump:
            others = [f"  {one.age:7.1f} s  {one.kind}: {one_line(str(one))}\n" for one in waits.longest(SHOWN)]
            heading = (
                f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self.name}, pid {os.getpid()} on {socket.gethostname()}\n"
                f"late: {one_line(_waited(wait))}\n"
                f"{json.dumps(facts, ensure_ascii=False)}\n"
                f"waits of this process, the longest first:\n{''.join(others)}\n"
            )
            places = stacks.note(waits.longest())
            self._jobs.put(lambda: self._dump(Path(file), heading + stacks.as_text(places)))
        if has_event and (event := self._event) is not None:
            self._jobs.put(lambda: event("late_wait", **facts))

    def _until_written(self) -> None:
        written = threading.Event()
        self._jobs.put(written.set)
        written.wait(DUMP_S)

    def _log(self, level: int, text: str, *about: Any) -> threading.Thread:
        thread = threading.Thread(target=lambda: log.log(level, text, *about), name="watchdog-log", daemon=True)
        with suppress(RuntimeError):  # the process has no room for a thread, or ends
            thread.start()
        return thread

    def _file(self) -> str:
        """A name that no other dump has: nothing is looked up, because the disk may hang. Later ones sort behind it."""
        number = f"{os.getpid()}-{next(_numbers):06}"
        return str(self.folder / STACKS / f"{time.strftime('%Y%m%d-%H%M%S')}-{number}_{self.name}.txt")

    # The thread that looks.

    def _watch(self) -> None:
        stopped = self._stopped
        while not stopped.wait(LOOK_S):
            try:
                self._look(waits.ran())
            except Exception as error:  # noqa: BLE001 - logged; the next look may succeed
                self._log(logging.ERROR, "the watchdog could not look at the waits: %r", error)

    def _look(self, now: float) -> None:
        all_waits = waits.longest()
        youngest = {wait.thread: wait for wait in all_waits}  # what a thread does is known by its youngest wait
        for wait in all_waits:
            if wait.deadline is None or now < wait.deadline:
                continue
            wait.report()
            current = youngest[wait.thread]
            is_busy = current.task is None if wait.task is not None else current is not wait
            if is_busy:  # with another wait, or an event loop in which others wait: its grace time begins after that
                wait.late_at = now
            elif wait.report_only or (wait.task is not None and not wait.task.get_loop().is_running()):
                continue
            elif now >= (wait.late_at or now) + GRACE_S and waits.may_end():
                self._exit(wait)

    def _exit(self, wait: Wait) -> None:
        """The process hangs: leave what is known of it, and end it."""
        try:
            self._end, file = "failed", self._file()
            self._queue_dump(wait, file, exit_code=EXIT_CODE)
            self._jobs.put(self._write_status)
            why = f"{_waited(wait)}, and it does not end; where all threads were: {file}"
            if self._event is not None:  # the process of the run itself
                hung = partial(write_failure, self.folder, DeadlineError(why), phase=wait.kind)
                self._jobs.put(lambda: hung(step=self.step, steps=self.steps))
            what, act = f"This process is ended (exit code {EXIT_CODE})", lambda: None
            if self.on_hang is not None:
                what, act = self.on_hang(why)
            logged = self._log(logging.CRITICAL, "%s. %s", why, what)
            self._until_written()
            logged.join(WRITING_S)
            act()
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
            except Exception as error:  # noqa: BLE001 - logged: the run continues without its status
                level = logging.WARNING if self._could_write else logging.DEBUG
                self._could_write = False
                self._log(level, "the watchdog cannot write in %s: %s", self.folder, error)
            if job is None:
                return

    def _write_status(self) -> None:
        is_time = bool(self._end) or time.monotonic() >= self._looked + WORKERS_S
        if self._event is not None and waits.worker_reports and is_time:
            self._looked = time.monotonic()
            self._report_workers(self._event)
        folder, stage = self.folder / STATUS, self._stage()
        early = folder / f"{self.name}{EARLY}"
        status = {
            "name": self.name, "pid": os.getpid(), "host": socket.gethostname(), "started": self._started,
            "time": time.time(), "state": self._end or stage, "step": self.step, "steps": self.steps,
            "late": self.late, "counts": waits.counts(),
            "batches": waits.batches(),
            "waits": [
                {
                    "kind": wait.kind, "owner": wait.owner, "subject": wait.subject, "age": round(wait.age, 1),
                    "limit": wait.seconds,
                }
                for wait in waits.longest(SHOWN)
            ],
        }  # fmt: skip
        text = json.dumps(status, indent=1) + "\n"
        if stage == "starting" and not self._end:
            self._was_early = True
            _replace(early, text)
            return
        if stage == "running":
            _replace(folder / f"{self.name}.json", text)
        if self._was_early:
            early.unlink(missing_ok=True)
            self._was_early = False
            with suppress(OSError):  # it is not empty, unless the run ends before it began
                folder.rmdir()

    def _report_workers(self, event: Callable[..., None]) -> None:
        """The dumps that other processes of the run have written since the last look, as events."""
        for file in sorted(set((self.folder / STACKS).glob("*.txt")) - self._known):
            self._known.add(file)
            with suppress(OSError, ValueError, IndexError):  # it has ended by now, or is not one of ours
                if _process(file) != self.name and file.stat().st_mtime >= self._started:
                    facts = json.loads(file.read_text(encoding="utf-8").split("\n", 3)[2])
                    event("late_wait", **facts, process=_process(file))

    def _dump(self, file: Path, text: str) -> None:
        """The stacks of this process at once, and then what its workers report, for which they have some seconds."""
        _replace(file, text)
        if waits.worker_reports:
            _replace(file, text + "".join(f"\n{report()}" for report in list(waits.worker_reports)))
        own = [dump for dump in file.parent.glob("*.txt") if _process(dump) == self.name]
        for old in sorted(own)[:-KEPT]:
            old.unlink(missing_ok=True)


def _waited(wait: Wait) -> str:
    return f"{wait.kind}: waited {wait.age:.0f} s for {wait} ({limit_in_words(wait.seconds)})"


def _process(dump: Path) -> str:
    return dump.stem.partition("_")[2]


def _replace(path: Path, text: str) -> None:
    """Write a file so that readers see it whole. Not synced: it is useless after a power failure."""
    temporary = path.with_name(f".{path.name}.writing")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    os.replace(temporary, path)
