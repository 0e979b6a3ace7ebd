"""Restarts: a run whose workers died, or whose process hangs, continues from its newest checkpoint.

- Workers of several processes died or hang: `setup.train`, or `supervised.train`, builds the run again in the same
  process (`note`).
- A one-process run hangs: the watchdog starts the command again (`on_hang`), by `os.execve` in place, which ends every
  thread and closes files, locks and GPU contexts; the process id stays, and `VARIABLE` says why. A program that calls
  the trainer itself exits with the watchdog's code instead.
"""

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from burnish.config import PPOConfig
from burnish.config.supervised import SupervisedConfig
from burnish.entry import ending
from burnish.errors import BurnishError
from burnish.waits import EXIT_CODE

if TYPE_CHECKING:
    from burnish.trainer.ppo import PPOTrainer
    from burnish.trainer.supervised import SupervisedTrainer

Config = TypeVar("Config", bound="PPOConfig | SupervisedConfig")

VARIABLE = "BURNISH_RESTART"

log = logging.getLogger(__name__)

_record: dict[str, Any] = {}  # of the restart that this process is
_job = 0  # the number of the current one
# Of a command that can be started again, when it began: libraries add to it what names their processes.
_environment: dict[str, str] = {}


def prepare(argv: list[str]) -> None:
    """Called by a command with its words. Lets `on_hang` start the process again, if it was started with these words,
    unless it got a signal to stop that it could not handle (`entry/ending.py`)."""
    global _job
    _job = 0
    _record.update(json.loads(os.environ.pop(VARIABLE, "{}")))
    if argv and set(argv) <= set(sys.orig_argv) and sys.argv[0] != "-":  # stdin cannot be read again
        _environment.update(os.environ)


def is_finished(config: PPOConfig) -> bool:
    """Called for each job of the command in turn (a sweep has several): whether it was finished before the restart. The
    one that hung keeps its folder, whose name may hold the time at which the command was started."""
    global _job
    _job += 1
    if _record and _job == _record["job"]:
        config.trainer.default_local_dir = _record["run"]
    return bool(_record) and _job < _record["job"]


class Restarts(Generic[Config]):
    """Counts restarts in a row without a new checkpoint; at most `most`."""

    def __init__(self, config: Config):
        self.most, self.run = config.trainer.max_restarts, config.trainer.default_local_dir
        self.in_a_row: int = _record.get("in_a_row", 0)
        self.saved: int | None = _record.get("saved")  # step of the newest checkpoint that this run has written itself
        self.event: dict[str, Any] | None = _record.get("event")  # of the restart, until it is written
        _record.clear()

    def resumed(self, config: Config) -> Config:
        """What to build the next attempt from: as it was set, until the run has its own checkpoint."""
        if self.saved is None:
            return config
        own: Any = dataclasses.replace(config.trainer, resume_mode="auto", resume_from_path=None)
        return dataclasses.replace(config, trainer=own)

    def note(self, error: BurnishError, trainer: "PPOTrainer | SupervisedTrainer[Any, Any]") -> None:
        """An attempt has failed: returns where another one may be made, and else raises `error` with what to do."""
        log.error("in step %d of %d: %s", trainer.step, trainer.total_steps, error)
        next_step = self._count(str(error), trainer)
        if self.event is None:
            logs = trainer.store.root / "logs"
            error.args = (f"{error}\n{next_step}. The logs of the workers are in {logs}",)
            raise error
        log.warning("%s", next_step)

    def on_hang(self, trainer: "PPOTrainer", why: str) -> tuple[str, Callable[[], None]]:
        """For the watchdog's thread (`Watchdog.on_hang`): what happens now, and what does it. One being closed ends."""
        next_step = f"This process is ended (exit code {EXIT_CODE})"
        if trainer.ending:
            next_step = f"The run had ended before that ({trainer.ending}). {next_step}"
        if trainer.ending or not can_start_again() or ending.received:
            return next_step, lambda: None
        what = self._count(why, trainer)
        if self.event is None:
            return f"{what}. {next_step}", lambda: None
        record = {"job": _job, "run": self.run, "in_a_row": self.in_a_row, "saved": self.saved, "event": self.event}
        return what, lambda: start_again({VARIABLE: json.dumps(record)})

    def write_event(self, trainer: "PPOTrainer") -> None:
        if (event := self.take_event()) is None:
            return
        if trainer.resume_from is None and not trainer.config.trainer.val_only:
            trainer.tracker.start()  # moves what the failed attempt left aside: the event belongs to the new one
        trainer.tracker.event("restart", **event)

    def take_event(self) -> dict[str, Any] | None:
        event, self.event = self.event, None
        return event

    def _count(self, error: str, trainer: "PPOTrainer | SupervisedTrainer[Any, Any]") -> str:
        """Count a failed attempt. Sets `event` where another one may be made; returns what happens next, in words."""
        saved, began = trainer.saved, trainer.resume_from
        if saved is None or (began is not None and began.name == trainer.store.folder(saved).name):
            saved = self.saved  # `trainer.saved` may also be the one that it started from
        self.in_a_row = self.in_a_row + 1 if saved == self.saved else 1
        self.saved = saved
        newest = None if saved is None else trainer.store.folder(saved)
        if self.in_a_row > self.most:
            self.event = None
            source = newest or "where this one started: it saved nothing (trainer.save_freq)"
            return (
                f"Given up after trainer.max_restarts={self.most} restarts in a row without a new checkpoint; the same "
                f"command continues from {source}"
            )
        self.event = {"attempt": self.in_a_row, "failed_step": trainer.step, "checkpoint": saved, "error": error}
        source = newest or "where it started, for it saved nothing yet"
        return f"restart {self.in_a_row} of {self.most}: the run continues from {source}"


def can_start_again() -> bool:
    return bool(_environment)


def start_again(variables: dict[str, str], under: Sequence[str] = ()) -> None:
    """Replace this process by the same command, `under` another, in the environment that it was started in."""
    for fd in os.listdir("/dev/fd"):
        with suppress(OSError):  # that of the listing itself
            os.set_inheritable(int(fd), int(fd) <= 2)  # libraries may leave files and devices open
    words = [*under, sys.executable, *sys.orig_argv[1:]]
    os.execvpe(words[0], words, _environment | variables)
