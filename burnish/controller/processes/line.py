"""SocketLine: how a worker process of this machine is reached, through a socket in a folder that only this user may
open; and `serve`: how it answers. Frames (burnish/child/frames.py) carry pickles both ways: processes of a run trust
each other. A connection is made by the first call of a process and kept; when it ends, its calls do with Lost.
"""

import asyncio
import concurrent.futures
import pickle
import socket
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from cloudpickle import CloudPickler

from burnish.child.frames import ANSWER, CALL, CANCEL, FrameBuffer, frame
from burnish.child.process import LINGER_SECONDS
from burnish.controller.cluster import Lacking, Line, Lost
from burnish.controller.host import WorkerHost
from burnish.controller.process import Address, Surroundings, tail
from burnish.controller.processes.memory import Stored, store
from burnish.controller.worker_status import SILENT
from burnish.loop_thread import LoopThread

CHUNK = 2**18


@dataclass(frozen=True)
class SocketLine(Line):
    pickler = CloudPickler
    path: str

    def ask(self, job: str, *arguments: Any) -> concurrent.futures.Future[Any]:
        """`arguments` are packed at once, and kept until the answer is there: they may own what they name."""
        return _loop().run(_call(self.path, pickle.dumps((job, arguments), protocol=5), arguments))

    def awaitable(self, job: str, *arguments: Any) -> Awaitable[Any]:
        return asyncio.wrap_future(self.ask(job, *arguments))

    def hang_up(self) -> None:
        """Of a process that has ended: what it has forked may hold its end of the connection."""
        if self.path in _connections:
            _loop().run(_hang_up(self.path))

    def log(self, address: Address) -> str:
        return tail(address) or "(cannot be read)"


@cache
def _loop() -> LoopThread:
    """The thread of this process's connections."""
    return LoopThread("calls of worker processes", name="lines", kind="worker")


class Connection:
    def __init__(self, writer: asyncio.StreamWriter):
        self._writer, self._last = writer, 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self.ended = False

    async def call(self, payload: bytes) -> bytes:
        self._last = number = self._last + 1
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(frame(number, CALL, payload))
            return await future
        except asyncio.CancelledError:
            self._writer.write(frame(number, CANCEL))
            raise
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        self.ended = True
        self._writer.close()

    async def read(self, reader: asyncio.StreamReader) -> None:
        frames = FrameBuffer()
        try:
            while data := await reader.read(CHUNK):
                for number, _, payload in frames.feed(data):
                    if (future := self._waiting.get(number)) is not None and not future.done():
                        future.set_result(payload)
        except OSError:
            pass  # as at its end
        finally:
            self.close()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(Lost(SILENT))


_connections: dict[str, asyncio.Task[Connection]] = {}
_reading: set[asyncio.Task[None]] = set()


async def _connect(path: str) -> Connection:
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except (ConnectionError, FileNotFoundError) as error:
        raise Lost(SILENT) from error
    except OSError as error:  # it may well live
        raise Lost(f"it cannot be reached: {error}", Lacking.CALL) from error
    connection = Connection(writer)
    task = asyncio.ensure_future(connection.read(reader))
    _reading.add(task)
    task.add_done_callback(_reading.discard)
    return connection


async def _hang_up(path: str) -> None:
    await asyncio.sleep(LINGER_SECONDS)
    if path in _connections:
        with suppress(Lost):
            (await _connections.pop(path)).close()


async def _call(path: str, payload: bytes, kept: tuple[Any, ...]) -> Any:
    if path not in _connections:
        _connections[path] = asyncio.ensure_future(_connect(path))
    try:
        connection = await asyncio.shield(_connections[path])
    except Lost:
        _connections.pop(path, None)  # the next call tries again
        raise
    if connection.ended:
        raise Lost(SILENT)
    value = pickle.loads(await connection.call(payload))  # noqa: S301 (from our own worker)
    if isinstance(value, Lost):
        raise value
    return value


class ProcessHost(WorkerHost):
    pickler = CloudPickler

    def __init__(self, surroundings: Surroundings, address: Address, places: Sequence[str]):
        super().__init__(surroundings, address)
        self._places = places

    def keep(self, memory: np.ndarray) -> Any:
        return store(memory, self._places)

    async def fetch(self, parts: Sequence[Any]) -> list[Any]:
        return [part.read() if isinstance(part, Stored) else part for part in parts]


def _forget(running: dict[int, asyncio.Task[None]], number: int, task: asyncio.Task[None]) -> None:
    running.pop(number, None)


async def serve(host: ProcessHost, listening: socket.socket) -> None:
    """Answer calls for ever: each in a task of its own, until it ends or is cancelled."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames, running = FrameBuffer(), dict[int, asyncio.Task[None]]()

        async def answer(number: int, payload: bytes) -> None:
            try:
                job, arguments = pickle.loads(payload)  # noqa: S301 (from another process of the run)
                value = await getattr(host, job)(*arguments)
            except Exception as error:  # noqa: BLE001 (of the call on its way; what a worker raises is in its reply)
                value = error if isinstance(error, Lost) else Lost(f"{type(error).__name__}: {error}", Lacking.CALL)
            writer.write(frame(number, ANSWER, pickle.dumps(value, protocol=5)))

        try:
            while data := await reader.read(CHUNK):
                for number, kind, payload in frames.feed(data):
                    if kind == CALL:
                        running[number] = asyncio.ensure_future(answer(number, payload))
                        running[number].add_done_callback(partial(_forget, running, number))
                    elif number in running:
                        running[number].cancel()
        except OSError:
            pass  # whoever called has ended
        finally:
            for task in running.values():
                task.cancel()
            writer.close()

    server = await asyncio.start_unix_server(converse, sock=listening)
    await server.serve_forever()
