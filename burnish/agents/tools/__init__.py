"""Tools that a policy may call. Write your own from these names.

base.py        the contract: BaseTool, ToolResponse, ToolError
function.py    @function_tool: a function as a tool; docstring.py reads what it says of itself
load.py        the tools of a YAML file; schema.py checks what they show the model
session.py     one trajectory's tools: state, time limits, failures; arguments.py checks what the model wrote
built_in.py    calculator.py (over arithmetic.py), python.py, search.py, answer_checker.py
mcp.py         the tools of an MCP server
"""

from burnish.agents.tools.base import BaseTool, ToolError, ToolResponse
from burnish.agents.tools.function import function_tool

__all__ = ["BaseTool", "ToolError", "ToolResponse", "function_tool"]
