"""One process per folder: `.lock`, held with flock from the first write to the end of the run. The kernel lets go of it
when the process ends, so a killed run never bars its own resumption. It holds process id and host, for messages."""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import time
from pathlib import Path
from typing import TextIO

from burnish.errors import CheckpointError, ConfigError
from burnish.tracking.disk import RUN_FOLDER, disk_problem

log = logging.getLogger(__name__)

LOCK_FILE = ".lock"
PATIENCE_S, AGAIN_S = 1.0, 0.02  # for `holder`, which has the lock for a moment
UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class FolderLock:
    """The lock of one folder, which is made where it is not there. `take` may be called again; `release` too.

    keys    those that name the place, as messages say; the first has `place` as its value
    place   what is written; None: the folder itself
    """

    def __init__(
        self, folder: Path, keys: tuple[str, ...] = (RUN_FOLDER, "trainer.experiment_name"), place: Path | None = None
    ) -> None:
        self.path, self.keys, self.place = folder / LOCK_FILE, keys, place or folder
        self._file: TextIO | None = None
        self._impossible = False

    @property
    def is_held(self) -> bool:
        """By this object; also on a file system that knows no locks, once it was tried."""
        return self._file is not None or self._impossible

    def take(self) -> None:
        """Take the lock, or raise ConfigError with who has it."""
        if self.is_held:
            return
        try:
            self._file = self._open_locked()
            self._file.truncate(0)
            self._file.write(f"{os.getpid()} {socket.gethostname()}\n")
            self._file.flush()
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise CheckpointError(f"cannot write {self.path}: {disk_problem(error, self.keys[0])}") from error
            self._impossible = True
            self.path.unlink(missing_ok=True)
            log.warning(
                "%s: this file system knows no locks (%s), so nothing stops a second run from writing in the folder",
                self.path.parent, error.strerror,
            )  # fmt: skip

    def release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with file:
                with contextlib.suppress(OSError):  # the folder may have been removed
                    self.path.unlink(missing_ok=True)
                # Not left to closing: a forked child has the same lock open.
                fcntl.flock(file, fcntl.LOCK_UN)

    def _open_locked(self) -> TextIO:
        until = time.monotonic() + PATIENCE_S
        while True:
            file = self._opened()
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_at_path(file):
                    return file
                file.close()  # its holder removed it between our opening and locking it: there is a new one to take
            except BlockingIOError:
                holder = file.read().split()
                file.close()
                if time.monotonic() > until:
                    raise ConfigError(
                        f"{self.keys[0]}={self.place}: {_who(holder)} is writing there. Wait until it has ended, or "
                        f"give another {' or '.join(self.keys)}"
                    ) from None
                time.sleep(AGAIN_S)
            except OSError:
                file.close()
                raise

    def _opened(self, *, is_last: bool = False) -> TextIO:
        """The file; tried twice, because its last holder may just be removing the folder."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644), "r+", encoding="utf-8")
        except FileNotFoundError:
            if is_last:
                raise
            return self._opened(is_last=True)

    def _is_at_path(self, file: TextIO) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), os.stat(self.path))
        except FileNotFoundError:
            return False


def holder(folder: Path) -> str | None:
    """Who has the lock of a folder, as `process 123 on host`; None where nobody has it."""
    try:
        with (folder / LOCK_FILE).open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _who(file.read().split())
            fcntl.flock(file, fcntl.LOCK_UN)
    except OSError:  # there is no such file, or the file system knows no locks
        pass
    return None


def _who(holder: list[str]) -> str:
    return f"process {holder[0]} on {holder[1]}" if len(holder) == 2 else "another process"
