"""Ends programs with all that they started and left behind, also when the process that owns them is gone.

`end_group` ends all processes of a group. Python's resource trackers among them are spared at first: each removes
shared memory of the others once these have ended, and then exits. What no tracker knows of is found in memory maps.

`KEEPER` has a process that does the same after this one: it waits for the end of a pipe, which comes however this
process ends. As Ray also kills the children of a worker that it ends, it is nobody's child, in a separate session.
"""

import logging
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path

import burnish

PROC = Path("/proc")
TIDY_S = 10.0  # for trackers to remove what is left
LOOK_S = 0.02
SHARED = re.compile(r"(/dev/shm/[^/\n]+)$", re.MULTILINE)  # files, not those in folders there

log = logging.getLogger(__name__)


def members(group: int) -> list[int]:
    """Processes of a group that still run; of one on a system without /proc, none is known."""
    return [int(folder.name) for folder in PROC.glob("[0-9]*") if _group(folder) == group]


def shared_files(group: int) -> set[Path]:
    """Shared memory with a name that processes of a group use."""
    found: set[Path] = set()
    for pid in members(group):
        with suppress(OSError):
            maps = (PROC / str(pid) / "maps").read_text(errors="replace")
            found.update(Path(name) for name in SHARED.findall(maps) if not name.endswith(" (deleted)"))
    return found


def end_group(group: int, used: Iterable[Path] = ()) -> None:
    """SIGKILL for all but this process and the trackers, which get it where they do not end in time. Removes the shared
    memory that they use, and what they are known to have `used`."""
    if not PROC.is_dir():
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        return
    left = {*used, *shared_files(group)}
    own = {os.getpid(), getattr(resource_tracker._resource_tracker, "_pid", None)}
    _kill(pid for pid in members(group) if pid not in own and not _is_tracker(pid))
    deadline = time.monotonic() + TIDY_S
    while set(members(group)) - own and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    for file in left:
        with suppress(OSError):  # it has ended, or is another user's
            file.unlink()
    _kill(pid for pid in members(group) if pid not in own)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _group(folder: Path) -> int | None:
    try:
        state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return None  # it has ended meanwhile
    return None if state == "Z" else int(group)


def _is_tracker(pid: int) -> bool:
    with suppress(OSError):
        return b"multiprocessing.resource_tracker" in (PROC / str(pid) / "cmdline").read_bytes()
    return False


def python_path() -> str:
    """PYTHONPATH for another process that imports burnish: this one's, and where burnish lies. That is left out where
    Python looks for packages anyway: the others there must not come before the standard library."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    root = Path(burnish.__file__).resolve().parents[1]
    found = [*paths, *site.getsitepackages(), site.getusersitepackages()]
    if root not in (Path(path).resolve() for path in found):
        paths.append(str(root))
    return os.pathsep.join(paths)


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
            self._send("+", new)

    def remove(self, *things: int | Path) -> None:
        with self._lock:
            gone = _words(things) & self._kept
            self._kept -= gone
            self._send("-", gone)

    def forget(self) -> None:
        """In a process that was forked, which has no part in it: the pipe ends with the other one."""
        if self._pipe is not None:
            os.close(self._pipe)
        self._lock, self._pipe, self._kept = threading.Lock(), None, set()

    def _send(self, sign: str, things: set[str]) -> None:
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
    for thing in sorted(kept, key=lambda thing: not thing.isdigit()):  # groups first
        if thing.isdigit():
            end_group(int(thing))
        else:
            shutil.rmtree(thing, ignore_errors=True)
            with suppress(OSError):
                os.unlink(thing)


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
