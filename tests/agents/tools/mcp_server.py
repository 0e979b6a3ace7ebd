"""A real MCP server, for the tests: `python mcp_server.py` serves these tools over stdio."""

import asyncio
import os

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import AudioContent, BlobResourceContents, EmbeddedResource, TextContent, TextResourceContents

server = MCPServer("for tests")


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def about() -> str:
    """The process's id, and an environment variable."""
    return f"{os.getpid()} {os.environ.get('FLAVOUR')}"


@server.tool()
async def wait(seconds: float) -> str:
    """Answer later, and let others go on meanwhile."""
    await asyncio.sleep(seconds)
    return "waited"


@server.tool()
def fail(reason: str) -> str:
    """Fail for a reason that the caller is told."""
    raise ToolError(reason)


@server.tool()
def table() -> dict[str, int]:
    """A structured result."""
    return {"rows": 3}


@server.tool(structured_output=False)
def mixed() -> list:
    """Text among things that are no text."""
    note, blob = {"uri": "memo://note", "mimeType": "text/plain", "text": "a note"}, {"uri": "memo://b", "blob": "AA=="}
    return [
        TextContent(text="before"),
        Image(data=b"\x89PNG", format="png").to_image_content(),
        AudioContent(data="AA==", mime_type="audio/wav"),
        EmbeddedResource(resource=TextResourceContents.model_validate(note)),
        EmbeddedResource(resource=BlobResourceContents.model_validate(blob)),
    ]


@server.tool()
def long(characters: int) -> str:
    """A result of so many characters."""
    return "x" * characters


if __name__ == "__main__":
    server.run()
