"""The supervisor process (jail/) as its parent sees it: start it, send it programs, end it. Used by local.py."""

import os
import socket
import subprocess
import sys
from contextlib import suppress

from burnish.sandbox.jail.wire import START, Setting

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # where burnish is imported from
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG")  # of the environment; programs get none of it
LEAVE_SECONDS = 10.0


class Supervisor:
    """A live process. It ends with this one, or when its socket is closed, and then so do all its programs."""

    def __init__(self, isolated: bool):
        self._owner = os.getpid()
        setting = Setting(self._owner, isolated, sys.executable, python_folders())
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", START, ROOT, setting.to_json()],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
                start_new_session=True,  # Ctrl-C is for the parent
            )
        self._control.setblocking(False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Not in a forked copy of its parent: they would take each other's place."""
        return self._owner == os.getpid() and self._process.poll() is None

    def takes(self, message: bytes, files: list[int]) -> bool:
        """False: not now, as too many requests wait, or not any more."""
        try:
            socket.send_fds(self._control, [message], files)
        except BlockingIOError:
            return False
        except ConnectionError:
            self._process.wait()  # so that it is no longer usable
            return False
        return True

    def close(self) -> None:
        if self._owner != os.getpid():
            return
        with suppress(OSError):  # it may be gone
            self._control.shutdown(socket.SHUT_RDWR)  # closing is not enough where a forked process has it too
        self._control.close()
        try:
            self._process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def python_folders() -> tuple[str, ...]:
    """Where the running Python and its packages lie, also behind links."""
    folders = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    path = sys.executable
    while os.path.islink(path):
        path = os.path.join(os.path.dirname(path), os.readlink(path))
        folders.append(os.path.dirname(os.path.dirname(path)))
    folders += [os.path.realpath(folder) for folder in folders]
    return tuple(dict.fromkeys(os.path.normpath(folder) for folder in folders))
