"""`verl.tools.tool_registry`, as verl 0.6 to 0.8 call it."""

from verl.tools.tool_registry import initialize_tools_from_config

__all__ = ["initialize_tools_from_config"]
