"""What children print, shown on this process's own standard error: so much a minute, so much in all, then a notice.

The rest is read slowly and dropped, so that a child that prints for ever fills no disk, and waits where it would take
the parent's time.
"""

import asyncio
import contextlib
import fcntl
import os
import time

MINUTE_BYTES, TOTAL_BYTES = 2**20, 2**26
PIPE_BYTES, PAUSE_S = 2**18, 0.005  # of the dropped rest, one pipe in each pause


class ShownOutput:
    """One for all children of an owner, whose `name` the notice has. Belongs to the event loop of the children."""

    def __init__(self, name: str):
        self._name = name
        self._minute, self._left, self._total = float("-inf"), 0, TOTAL_BYTES

    def take(self, data: bytes, pipe: asyncio.ReadTransport) -> None:
        now = time.monotonic()
        if now - self._minute >= 60.0:
            self._minute, self._left = now, min(MINUTE_BYTES, self._total)
        shown = data[: self._left]
        if shown:
            self._left, self._total = self._left - len(shown), self._total - len(shown)
            if not self._left:
                more = "nothing more" if not self._total else "the rest of this minute"
                size = TOTAL_BYTES if not self._total else MINUTE_BYTES
                shown += f"\nburnish: {self._name} printed {size >> 20} MiB; {more} is not shown\n".encode()
            with contextlib.suppress(OSError):  # as for any other message: nobody reads it
                while shown:
                    shown = shown[os.write(2, shown) :]
        if not self._left:
            with contextlib.suppress(OSError, AttributeError):  # more than is allowed; not on Linux
                fcntl.fcntl(pipe.get_extra_info("pipe"), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            pipe.pause_reading()
            asyncio.get_running_loop().call_later(PAUSE_S, pipe.resume_reading)
