"""`console.log`: what the process of a run shows on its terminal, kept in the run folder.

Between `recorded()` and its end, whatever is written to sys.stdout and sys.stderr is shown as before and kept too: the
first lines in memory, until `keep_in` names the folder of the run. Of a line that is redrawn, as a progress bar is, its
last state is kept, without escape codes. Not seen: what other processes and native code write to the terminal.
"""

import re
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from burnish.waits import waiting

CONSOLE_FILE = "console.log"
FIRST_LINES = 10_000  # kept in memory at most
LONGEST = 100_000  # characters of a line that has not ended yet
WRITE_S = 600.0
_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\^_])")

_current: "Transcript | None" = None


@contextmanager
def recorded() -> Iterator[None]:
    """Keep what is shown. Does nothing inside of another one."""
    global _current
    if _current is not None:
        yield
        return
    _current = transcript = Transcript()
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    copies = {name: _Copied(stream, transcript) for name, stream in streams.items() if stream is not None}
    vars(sys).update(copies)
    try:
        yield
    finally:
        for name, copy in copies.items():
            if getattr(sys, name) is copy:  # else something around it has replaced it
                setattr(sys, name, streams[name])
        _current = None
        transcript.close()


def keep_in(folder: Path) -> None:
    """From here on, and for what was shown so far, the lines belong in this folder."""
    if _current is not None:
        _current.write_to(folder / CONSOLE_FILE)


class Transcript:
    """Whole lines, written at once where there is a file. A disk that takes no more ends it: the run will notice."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._lines: deque[str] = deque(maxlen=FIRST_LINES)
        self._file: TextIO | None = None

    def add(self, line: str) -> None:
        self._lines.append(_ESCAPE.sub("", line).rstrip("\r").rpartition("\r")[2] + "\n")
        self._write()

    def write_to(self, path: Path) -> None:
        with self.lock:
            if self._file is None or self._file.name != str(path):
                self.close()
                with suppress(OSError):
                    self._file = path.open("a", encoding="utf-8", errors="backslashreplace")
            self._write()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _write(self) -> None:
        if self._file is None or not self._lines:
            return
        try:
            with waiting("disk", "", f"{CONSOLE_FILE} to be written", WRITE_S):
                self._file.writelines(self._lines)
                self._file.flush()
        except OSError:
            self.close()
        self._lines.clear()


class _Copied:
    """A stream whose lines also go to the transcript."""

    def __init__(self, stream: TextIO, transcript: Transcript) -> None:
        self._stream, self._transcript, self._begun = stream, transcript, ""

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        with self._transcript.lock:
            *lines, begun = (self._begun + text).split("\n")
            self._begun = begun[-LONGEST:]
            for line in lines:
                self._transcript.add(line)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
