"""One process per run folder: `.lock`, held with flock from the first write to the end of the run.

The kernel lets go of it when the process ends, however it ends, so a killed run never bars its own resumption. The file
holds the process id and the host, for the message to whoever comes second.
"""

import contextlib
import errno
import fcntl
import logging
import os
import socket
from pathlib import Path
from typing import TextIO

from burnish.errors import CheckpointError, ConfigError
from burnish.tracking.disk import disk_problem

log = logging.getLogger(__name__)

LOCK_FILE = ".lock"
UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class FolderLock:
    """The lock of one run folder. `take` may be called again; `release` too."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_FILE
        self._file: TextIO | None = None
        self._impossible = False

    def take(self) -> None:
        """Take the lock, or raise ConfigError with who has it."""
        if self._file is not None or self._impossible:
            return
        try:
            self._file = self._open_locked()
            self._file.truncate(0)
            self._file.write(f"{os.getpid()} {socket.gethostname()}\n")
            self._file.flush()
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise CheckpointError(f"cannot write {self.path}: {disk_problem(error)}") from error
            self._impossible = True
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
        while True:
            file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644), "r+", encoding="utf-8")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_at_path(file):
                    return file
                file.close()  # its holder removed it between our opening and locking it: there is a new one to take
            except BlockingIOError:
                holder = file.read().split()
                file.close()
                raise self._taken(holder) from None
            except OSError:
                file.close()
                raise

    def _is_at_path(self, file: TextIO) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _taken(self, holder: list[str]) -> ConfigError:
        who = f"process {holder[0]} on {holder[1]}" if len(holder) == 2 else "another process"
        return ConfigError(
            f"trainer.default_local_dir={self.path.parent}: {who} is writing in this folder. Wait until it has ended, "
            "or give this run a folder of its own: another trainer.experiment_name or trainer.default_local_dir"
        )
