"""Where verl 0.6 to 0.8 have `tool_registry`."""
