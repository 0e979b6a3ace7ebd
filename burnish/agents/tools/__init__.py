"""Tools that a policy may call. Write your own from these names.

base.py        the contract: BaseTool, ToolResponse, ToolError
function.py    @function_tool: a function as a tool
load.py        the tools of a YAML file, and the built-in ones
schema.py      what the model is shown of a tool, and what it may write as arguments
session.py     one trajectory's tools: state, time limits, failures
mcp.py         the tools of an MCP server
"""

from burnish.agents.tools.base import BaseTool, ToolError, ToolResponse
from burnish.agents.tools.function import function_tool

__all__ = ["BaseTool", "ToolError", "ToolResponse", "function_tool"]
