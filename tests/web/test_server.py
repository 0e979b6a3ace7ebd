"""The socket of a server, and its address."""

import asyncio
import socket

import pytest

from burnish.errors import ConfigError
from burnish.web.server import is_local, listen, url


def test_addresses():
    with listen("::1", 0) as listener:
        assert url(listener) == f"http://[::1]:{listener.getsockname()[1]}" and is_local(listener)
    with listen("0.0.0.0", 0) as listener:
        port = listener.getsockname()[1]
        assert url(listener) == f"http://127.0.0.1:{port}" and not is_local(listener)
        with pytest.raises(ConfigError, match=f"port {port} on 0.0.0.0 is in use by another program; .*--port"):
            listen("0.0.0.0", port)
    for host in ("no such host", "192.0.2.1", "x" * 100):
        with pytest.raises(ConfigError, match="--host .*: (no such|not an) address.*; use 127.0.0.1, or 0.0.0.0"):
            listen(host, 0)


def test_connections_send_without_delay():
    """Headers and body go out as two packets; with Nagle's algorithm the second waits for 40 ms."""

    async def option():
        made = asyncio.get_running_loop().create_future()

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport):
                made.set_result(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

        with listen("127.0.0.1", 0) as listener:
            server = await asyncio.get_running_loop().create_server(Protocol, sock=listener)
            async with server:
                with socket.create_connection(listener.getsockname()):
                    return await made

    assert asyncio.run(option())
