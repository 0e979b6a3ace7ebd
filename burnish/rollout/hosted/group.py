"""Ends all processes of a group, also stopped ones, and cleans up what they leave behind.

Python's resource trackers among them are spared at first: each removes shared memory of the others once these have
ended, and then exits; that of this process, only after it. What no tracker knows of is found in the memory maps of the
processes, before they end.
"""

import os
import re
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path

PROC = Path("/proc")
TIDY_S = 10.0  # for trackers to remove what is left
LOOK_S = 0.02
SHARED = re.compile(r"(/dev/shm/[^/\n]+)$", re.MULTILINE)  # files, not those in folders there


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
