"""Frames, and the child's end of the pipes. Light, because every child imports it before anything else."""

import json
import os
import queue
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import asyncio

HEADER = struct.Struct(">IQB")  # payload bytes, number of the call, kind
CALL, CANCEL, PART, ANSWER = range(4)
_SET_PDEATHSIG = 1  # prctl


def frame(number: int, kind: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(len(payload), number, kind) + payload


_as_json = json.JSONEncoder().encode  # which code that replaces functions of json does not change


def json_bytes(value: Any) -> bytes:
    return _as_json(value).encode()


class FrameTooLarge(Exception):
    """(number of the call, why)"""


class FrameBuffer:
    """Whole frames out of bytes as they arrive; `most` is the largest payload, in bytes."""

    def __init__(self, most: int = 2**32) -> None:
        self._most, self._bytes = most, bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """(number, kind, payload) of each frame that is complete now. FrameTooLarge: one is."""
        self._bytes += data
        while len(self._bytes) >= HEADER.size:
            length, number, kind = HEADER.unpack_from(self._bytes)
            if length > self._most:
                raise FrameTooLarge(number, f"it is larger than {self._most} bytes")
            if len(self._bytes) < HEADER.size + length:
                return
            payload = bytes(self._bytes[HEADER.size : HEADER.size + length])
            del self._bytes[: HEADER.size + length]
            yield number, kind, payload


def private_pipes() -> tuple[int, int]:
    """Move the pipes (standard input and output) to descriptors that nothing else uses or inherits."""
    pipes = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return pipes


class Parent:
    """The parent process, as its child sees it. A thread reads calls from the start, and does nothing else: where they
    end, the parent has died, and the thread ends this process even in the middle of a call.

    kill_group     at that end, kill everything this process started too
    limits         resource limits, by the name of resource.RLIMIT_…
    die_at_once    have the kernel kill this process (and only it) when the thread that started it ends
    """

    def __init__(
        self, *, kill_group: bool = True, limits: dict[str, int] | None = None, die_at_once: bool = False
    ) -> None:
        reading, self._writing = private_pipes()
        self._pid = os.getpid()
        self._kill_group = kill_group
        self._calls: queue.SimpleQueue[tuple[int, int, bytes]] = queue.SimpleQueue()
        if die_at_once:
            import ctypes

            ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # ended before this: the pipe shows it
        threading.Thread(target=self._read, args=(reading,), name="parent", daemon=True).start()
        if limits:
            import resource

            for name, most in limits.items():
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))

    def receive(self) -> tuple[int, int, bytes]:
        """The next (number, kind, payload); waits for it."""
        return self._calls.get()

    def deliver(self, loop: "asyncio.AbstractEventLoop", take: Callable[[int, int, bytes], None]) -> None:
        """From now on hand every frame, as it arrives, to `take` on this loop."""

        def hand_over() -> NoReturn:
            while True:
                loop.call_soon_threadsafe(take, *self._calls.get())

        threading.Thread(target=hand_over, name="calls", daemon=True).start()

    def send(self, number: int, value: Any, kind: int = ANSWER) -> None:
        self.write(frame(number, kind, json_bytes(value)))

    def write(self, frames: bytes) -> None:
        """Whole frames; called in one thread only. A fork of this process, which code that ran here left behind, ends
        instead."""
        if os.getpid() != self._pid:
            os._exit(0)
        left = memoryview(frames)
        try:
            while left:
                left = left[os.write(self._writing, left) :]
        except OSError:  # nobody reads any more
            self._leave()

    def _read(self, descriptor: int) -> NoReturn:
        frames = FrameBuffer()
        while data := os.read(descriptor, 2**18):
            for each in frames.feed(data):
                self._calls.put(each)
        self._leave()

    def _leave(self) -> NoReturn:
        """At once: nobody is left to read the answers."""
        if self._kill_group and os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)
