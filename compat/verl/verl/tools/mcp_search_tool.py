"""`verl.tools.mcp_base_tool`, by another name that users' tool files have."""

from burnish.agents.tools.mcp import McpTool as MCPSearchTool

__all__ = ["MCPSearchTool"]
