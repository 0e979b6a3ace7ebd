"""One MCP server over stdio: its process, started at the first call of a run, and the calls to it.

A `Connection` is one life of the process. One task enters and leaves the `mcp` package's contexts, whose cancel scopes
must be left where they were entered; it waits until something ends the connection: `close`, the server's own end, a
line that is no message, or no answer to a ping after a call took too long. That end fails the calls in flight. A call
that finds the connection over starts the server again, once; so does a call on another event loop.

All trajectories share the process, and calls run at the same time: a server keeps no state of a trajectory here.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import ClientSession, MCPError, StdioServerParameters, stdio_client
from mcp.types import CONNECTION_CLOSED, INVALID_PARAMS, CallToolResult, PaginatedRequestParams, Tool

from burnish.agents.tools.base import ToolError
from burnish.errors import ToolFailure

START_SECONDS = 60.0  # for a server's start: that of an interpreter with much to import
PING_SECONDS = 3.0  # for a sign of life after a call took too long
STDERR_BYTES = 2000  # of a server's standard error, reported when it fails


class McpSession:
    """A server for a whole run. `timeout` is in seconds for one call."""

    def __init__(self, name: str, command: str, arguments: list[str], environment: dict[str, str], timeout: float):
        self.name = name
        self._parameters = StdioServerParameters(command=command, args=arguments, env=environment)
        self._timeout = timeout
        self._connection: Connection | None = None
        self._alive: set[Connection] = set()  # also those that are ending

    async def list_tools(self) -> list[Tool]:
        """What the server offers, from a process that is ended again."""
        connection = Connection(self.name, self._parameters)
        try:
            await connection.started()
            return connection.tools
        finally:
            await connection.close()

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """ToolError for arguments that the server refuses, ToolFailure for everything else that goes wrong."""
        connection, loop = self._connection, asyncio.get_running_loop()
        if connection is None or connection.cause or connection.loop is not loop:
            if connection and connection.loop is not loop and not connection.loop.is_closed():
                connection.loop.call_soon_threadsafe(connection.end, "was left for another event loop")
            self._alive = {one for one in self._alive if not one.life.done() and not one.loop.is_closed()}
            connection = self._connection = Connection(self.name, self._parameters)
            self._alive.add(connection)
        await connection.started()
        return await connection.call(tool, arguments, self._timeout)

    async def close(self) -> None:
        for connection in list(self._alive):
            if connection.loop is asyncio.get_running_loop():
                await connection.close()
            elif not connection.loop.is_closed():
                connection.loop.call_soon_threadsafe(connection.end, "was closed")
        self._connection = None


class Connection:
    """One life of a server's process, on the event loop that made it. `cause` is why it is over, or about to be."""

    def __init__(self, name: str, parameters: StdioServerParameters):
        self.loop = asyncio.get_running_loop()
        self.cause = ""
        self.tools: list[Tool] = []
        self._name, self._parameters, self._stderr = name, parameters, _Tail()
        self._ready, self._stop = asyncio.Event(), asyncio.Event()
        self._session: ClientSession | None = None
        self._requests: set[asyncio.Task[Any]] = set()  # held, because the event loop alone does not keep them
        self._ping: asyncio.Task[None] | None = None
        self.life = asyncio.create_task(self._live(), name=f"MCP server {name}")

    async def started(self) -> None:
        """Wait until calls can be made; ToolFailure where it comes to nothing."""
        await self._ready.wait()
        if self._session is None:
            raise await self._failure()

    async def call(self, tool: str, arguments: dict[str, Any], timeout: float) -> CallToolResult:
        assert self._session is not None
        request = self._request(self._session.call_tool(tool, arguments))
        try:
            await asyncio.wait({request}, timeout=timeout)
            if request.done():
                return await self._result(tool, request)
            if self.cause:
                raise await self._failure(tool)
            raise ToolFailure(f"{self._who(tool)} did not answer in {timeout:g} s; raise config.timeout of its entry")
        finally:
            if not request.done():  # too late, or its trajectory was cancelled: the server may be stuck
                request.cancel()
                self._ping = self._ping or self._request(self._check())

    def end(self, cause: str) -> None:
        self.cause = self.cause or cause
        self._stop.set()

    async def close(self) -> None:
        self.end("was closed")
        await asyncio.wait({self.life})

    async def _live(self) -> None:
        try:
            async with self._stderr.open() as stderr, stdio_client(self._parameters, stderr) as (read, write):
                forward, messages = anyio.create_memory_object_stream[Any](0)
                relay = asyncio.create_task(self._relay(read, forward))
                async with ClientSession(messages, write) as session:
                    await self._shake_hands(session)
                    await self._stop.wait()
                    relay.cancel()
                    for request in self._requests:
                        request.cancel()
        except Exception as error:  # noqa: BLE001  reported to the callers
            self.end(f"cannot be run ({_shown(error)})")
        finally:
            self.end("was cancelled")
            self._session = None
            self._ready.set()

    async def _shake_hands(self, session: ClientSession) -> None:
        try:
            with anyio.fail_after(START_SECONDS):
                await session.initialize()
                page = await session.list_tools()
                self.tools += page.tools
                while page.next_cursor is not None:
                    page = await session.list_tools(params=PaginatedRequestParams(cursor=page.next_cursor))
                    self.tools += page.tools
        except TimeoutError:
            self.end(f"did not list its tools within {START_SECONDS:g} s of its start")
        except Exception as error:  # noqa: BLE001  it is the server's answer that is wrong
            self.end(f"failed the handshake ({_shown(error)})")
        else:
            self._session = session
            self._ready.set()

    async def _relay(self, read: Any, forward: Any) -> None:
        """Forward the server's messages until it ends or writes something else."""
        async with forward:
            async for message in read:
                if isinstance(message, Exception):
                    return self.end(
                        f"wrote a line that is no message of the protocol ({_shown(message)}); a server over stdio "
                        "must write only protocol messages to its standard output"
                    )
                await forward.send(message)
            self.end("exited")

    async def _result(self, tool: str, request: "asyncio.Task[CallToolResult]") -> CallToolResult:
        try:
            return request.result()
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise await self._failure(tool) from error
            if error.code == INVALID_PARAMS:
                raise ToolError(error.message) from error
            raise ToolFailure(f"{self._who(tool)} answered with an error ({error.code}: {error.message})") from error
        except (Exception, asyncio.CancelledError) as error:
            if self.cause:
                raise await self._failure(tool) from error
            raise ToolFailure(f"{self._who(tool)} gave a result that cannot be used ({_shown(error)})") from error

    async def _check(self) -> None:
        assert self._session is not None
        try:
            with anyio.fail_after(PING_SECONDS):
                await self._session.send_ping()
        except TimeoutError:
            self.end(f"was ended: it did not answer a ping within {PING_SECONDS:g} s after a call had taken too long")
        except MCPError:
            pass  # an error is an answer too; a closed connection ends on its own
        finally:
            self._ping = None

    def _request(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # read, so that none is reported
        return task

    async def _failure(self, tool: str = "") -> ToolFailure:
        """Why it ended; waits for that, so that all of its standard error is there."""
        await asyncio.wait({self.life})
        said = self._stderr.text()
        return ToolFailure(
            f"{self._who(tool)} {self.cause}" + (f"; its standard error ends with:\n{said}" if said else "")
        )

    def _who(self, tool: str) -> str:
        return f"MCP server {self._name}" + (f", tool {tool}:" if tool else "")


class _Tail(asyncio.Protocol):
    """A pipe for a process to write to, whose last bytes are kept."""

    def __init__(self) -> None:
        self._bytes = b""
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        reading, writing = os.pipe()
        with os.fdopen(writing, "w") as writer:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, os.fdopen(reading, "rb"))
            try:
                yield writer
            finally:
                writer.close()
                with anyio.move_on_after(0.5):  # a child of the server may keep the pipe open
                    await self._ended.wait()
                transport.close()

    def text(self) -> str:
        return self._bytes.decode(errors="replace").strip()

    def data_received(self, data: bytes) -> None:
        self._bytes = (self._bytes + data)[-STDERR_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()


def _shown(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]
