"""One start of a command, in a process group of its own, with everything that it starts.

Importing takes longer than these runs do, so they are forked from a process that has imported what they import; or they
are started as `python -m burnish.cli.main`.
"""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

from burnish.cli.main import main
from burnish.entry.ending import leave

MARK = "BURNISH_KILLS"  # a variable that all processes of a command inherit
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["hydra", "peft", "transformers.models.qwen2", "burnish.trainer.setup", "burnish.trainer.rm"]
)


class Command:
    """One start of a command, the leader of a process group."""

    def __init__(self, words: list[str], folder: Path, alone: bool):
        self.folder, self.mark = folder, uuid.uuid4().hex
        if alone:
            command, environment = [sys.executable, "-m", "burnish.cli.main", *words], os.environ | {MARK: self.mark}
            with (folder / "log.txt").open("a") as log:
                self.process = subprocess.Popen(
                    command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
                )
        else:
            self.process = FORKS.Process(target=forked, args=(words, folder, self.mark))
            self.process.start()

    def code(self, seconds: float) -> int | None:
        """How it ended; None where it has not within that time."""
        if isinstance(self.process, subprocess.Popen):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
            return self.process.returncode
        self.process.join(seconds)
        return self.process.exitcode

    def kill(self, number: int, group: bool) -> None:
        """A signal to the command, or to all of its group."""
        with contextlib.suppress(ProcessLookupError):
            while os.getpgid(self.process.pid) != self.process.pid:  # it is being forked, and no command yet
                time.sleep(0.001)
            (os.killpg if group else os.kill)(self.process.pid, number)

    def left(self) -> dict[int, str]:
        """Processes that it has started and that still run."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (process / "environ").read_bytes():
                    found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
        return found

    def last_words(self) -> str:
        return (self.folder / "log.txt").read_text()[-2000:]


def forks_are_ready() -> None:
    """Wait until that process has imported everything."""
    process = FORKS.Process(target=int)
    process.start()
    process.join()


def forked(words: list[str], folder: Path, mark: str) -> None:
    """What a forked process does: a command, as if it had been started in this folder."""
    try:
        os.setsid()
        os.chdir(folder)
        os.environ[MARK] = mark
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = main(words)
    except KeyboardInterrupt:  # before the command was there to handle it
        code = 130
    leave(code)
