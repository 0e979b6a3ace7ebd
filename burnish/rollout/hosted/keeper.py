"""A process that outlives this one, and then cleans up after it: ends its programs and removes their files.

`KEEPER` is notified of process groups, folders and files as they come and go. Its process waits for
the end of the pipe that notifies it, which comes however this process ends: closed, killed, or by Ray, which also
kills the children of a worker that it ends. So it is nobody's child, in a separate session. It is started with the
first thing that there is to keep, does not hear signals that are meant for others, and ends after its work.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from burnish.rollout.hosted.arguments import python_path
from burnish.rollout.hosted.group import end_group

log = logging.getLogger(__name__)


class Keeper:
    """A number is a process group, anything else a folder or a file. May be called in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe: int | None = None
        self._kept: set[str] = set()

    def add(self, *things: int | Path) -> None:
        with self._lock:
            new = _words(things) - self._kept
            self._kept |= new
            self._tell("+", new)

    def remove(self, *things: int | Path) -> None:
        with self._lock:
            gone = _words(things) & self._kept
            self._kept -= gone
            self._tell("-", gone)

    def forget(self) -> None:
        """In a process that was forked, which has no part in it: the pipe ends with the other one."""
        if self._pipe is not None:
            os.close(self._pipe)
        self._lock, self._pipe, self._kept = threading.Lock(), None, set()

    def _tell(self, sign: str, things: set[str]) -> None:
        if not things:
            return
        if self._pipe is not None:
            try:
                self._write(sign, things)
                return
            except OSError:  # somebody has killed it
                os.close(self._pipe)
                self._pipe = None
        if self._kept:
            try:
                self._start()
                self._write("+", self._kept)
            except (OSError, subprocess.SubprocessError) as error:
                log.warning(
                    "no process watches this one (%s): if it is killed, these are not cleaned up: %s",
                    error,
                    ", ".join(sorted(self._kept)),
                )

    def _write(self, sign: str, things: set[str]) -> None:
        assert self._pipe is not None, "it is started"
        for thing in sorted(things):
            os.write(self._pipe, f"{sign}{thing}\n".encode())  # at once, short as it is: half a line is never read

    def _start(self) -> None:
        theirs, ours = os.pipe()
        try:
            subprocess.run(  # which returns as soon as the process has one in its place
                [sys.executable, "-P", "-m", "burnish.rollout.hosted.keeper", str(theirs)],
                env={**os.environ, "PYTHONPATH": python_path()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs],
                start_new_session=True,
                check=True,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._pipe = ours


def _words(things: Iterable[int | Path]) -> set[str]:
    return {str(thing.absolute() if isinstance(thing, Path) else thing) for thing in things}


KEEPER = Keeper()
os.register_at_fork(after_in_child=KEEPER.forget)


def keep(pipe: int) -> None:
    """Read what there is to keep until its owner ends; then put an end to it."""
    kept: set[str] = set()
    with open(pipe, encoding="utf-8") as lines:
        for line in lines:
            (kept.add if line[0] == "+" else kept.discard)(line[1:-1])
    for group in (int(thing) for thing in kept if thing.isdigit()):
        end_group(group)
    for path in (Path(thing) for thing in kept if not thing.isdigit()):
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # before the fork: none is to come in between
        signal.signal(number, signal.SIG_IGN)
    if os.fork():
        return  # whose child, the keeper, is an orphan then
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # a reader of its owner's output shall find its end
        os.dup2(nowhere, stream)
    os.chdir("/")
    keep(int(sys.argv[1]))


if __name__ == "__main__":
    _main()
