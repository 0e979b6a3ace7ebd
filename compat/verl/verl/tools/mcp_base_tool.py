"""Tools of MCP servers, by the name that users' tool files have. They are burnish's: text is shown as the server gives
it."""

from burnish.agents.tools.mcp import McpTool as MCPBaseTool

__all__ = ["MCPBaseTool"]
