"""Tools written for verl: `base_tool.py` the contract, `schemas.py` its objects, `function_tool.py` functions as tools,
`tool_registry.py` the tools of a YAML file for loops that call them themselves."""
