"""Memory that all processes of a machine read: one file for each large tensor, in /dev/shm or, where that is full, in
the folder for temporary files. Whoever reads it maps it. A file is removed with its last `Stored` in the process that
owns it: the controller, of what it sends and of all that workers answer. Mapped memory stays readable.
"""

import contextlib
import itertools
import os
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from burnish.controller.cluster import Lacking, Lost

SHARED = Path("/dev/shm")

_numbers = itertools.count()


class Stored:
    """Where memory is. A copy in another process owns nothing."""

    def __init__(self, path: str):
        self.path = path

    def own(self) -> "Stored":
        """Remove the file when this object is gone; a fork of this process does not."""
        weakref.finalize(self, _remove, self.path, os.getpid())
        return self

    def read(self) -> np.ndarray:
        try:
            return np.memmap(self.path, np.uint8, mode="r")
        except OSError as error:
            raise Lost(str(error), Lacking.DATA) from error


def make_folders() -> list[str]:
    """The folders of a run's files, which only this user can open; the controller removes them."""
    roots: list[Path | str] = [SHARED] if SHARED.is_dir() and os.access(SHARED, os.W_OK) else []
    return [tempfile.mkdtemp(prefix="burnish-", dir=root) for root in [*roots, tempfile.gettempdir()]]


def store(memory: np.ndarray, places: Sequence[str]) -> Stored:
    """Write memory into the first of the folders that has room for it; Lost: none has."""
    full = []
    for place in places:
        path = f"{place}/{os.getpid()}-{next(_numbers)}"
        try:
            with open(path, "wb", buffering=0) as file:
                left = memory.data.cast("B")
                while left:
                    left = left[file.write(left) :]
            return Stored(path)
        except OSError as error:
            _remove(path, os.getpid())
            full.append(f"{place} ({error.strerror})")
    raise Lost(
        f"the memory that processes share: {memory.nbytes / 2**20:.0f} MiB, {', '.join(full)}; lower "
        "data.train_batch_size, or make room there (in a container: --shm-size)",
        Lacking.ROOM,
    )


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.unlink(path)
