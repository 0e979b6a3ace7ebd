"""The tools of a run by name: those of the YAML file `multi_turn.tool_config_path` and the functions with
`@function_tool` of the Python file `multi_turn.function_tool_path`, or without either the built-in ones.

An entry is short (`{name: calculator}`: a built-in tool, perhaps in other words), long (`{class_name: my_tools.py:Dice,
config, tool_schema}`) or of MCP servers (mcp.py). A class is made with (config, tool_schema), and with the run's
`retriever` (a function that returns the client) or `sandbox` where its constructor has a parameter so named.
"""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.agents.targets import check_keys, load_from_folder, made, read_yaml
from burnish.agents.tools.base import BaseTool
from burnish.agents.tools.function import FunctionTool
from burnish.agents.tools.schema import check_agreement, check_schema, parameters_of
from burnish.config.reward import SandboxConfig
from burnish.errors import ConfigError
from burnish.user_code import listed, load_module, load_target, nearest

if TYPE_CHECKING:
    from burnish.search.client import RetrieverClient

KEY = "actor_rollout_ref.rollout.multi_turn.tool_config_path"
FUNCTIONS_KEY = "actor_rollout_ref.rollout.multi_turn.function_tool_path"
BUILT_IN = {  # each with a SCHEMA
    "calculator": "burnish.agents.tools.calculator.CalculatorTool",
    "python": "burnish.agents.tools.python.PythonTool",
    "search": "burnish.agents.tools.search.SearchTool",
    "calc_gsm8k_reward": "burnish.agents.tools.answer_checker.Gsm8kTool",
    "calc_geo3k_reward": "burnish.agents.tools.answer_checker.Geo3kTool",
}
SHORT = ("name", "description", "parameters", "config")
LONG = ("class_name", "config", "tool_schema")
KINDS = ("native", "mcp")

Parts = Mapping[str, Any]  # of the run, that a tool's constructor may ask for


def load_tools(
    path: str | None,
    functions: str | None = None,
    *,
    retriever: "Callable[[], RetrieverClient]",
    sandbox: SandboxConfig,
) -> dict[str, BaseTool]:
    """By name. Without a file, all built-in tools, which rows may name."""
    parts = {"retriever": retriever, "sandbox": sandbox}
    found = {} if path is None else _load_entries(path, parts)
    for tool in _load_functions(functions) if functions else ():
        if tool.name in found:
            raise ConfigError(
                f"{FUNCTIONS_KEY}={functions}: the name {tool.name} is taken by another tool; give each its own"
            )
        found[tool.name] = tool
    if path is None and functions is None:
        return {
            name: _made(load_target(target, name), {}, None, parts, f"tool {name}") for name, target in BUILT_IN.items()
        }
    return found


def _load_functions(path: str) -> list[FunctionTool]:
    about = f"{FUNCTIONS_KEY}={path}"
    tools = [value for value in vars(load_module(path, about)).values() if isinstance(value, FunctionTool)]
    if not tools:
        raise ConfigError(f"{about}: it has no function tool; put @function_tool above its functions")
    return tools


def _load_entries(path: str, parts: Parts) -> dict[str, BaseTool]:
    content = read_yaml(path, KEY)
    entries = content.get("tools") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{KEY}={path}: expected `tools:` and a list of entries, got {content!r:.100}")
    if others := [key for key in content if key != "tools"]:
        raise ConfigError(
            f"{KEY}={path}: unknown key {others[0]!r:.100} next to tools; move it into the entry of its tool"
        )
    found: dict[str, BaseTool] = {}
    places: dict[str, int] = {}
    for position, entry in enumerate(entries):
        where = f"{KEY}={path}, entry {position}"
        for tool in _load_entry(entry, Path(path).expanduser().parent, parts, where):
            if tool.name in found:
                raise ConfigError(
                    f"{where}: the name {tool.name} is taken by entry {places[tool.name]}; give each tool its own"
                )
            found[tool.name], places[tool.name] = tool, position
    return found


def _load_entry(entry: Any, folder: Path, parts: Parts, where: str) -> list[BaseTool]:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: an entry has class_name and tool_schema, or name; got {entry!r:.200}")
    config = entry.get("config") or {}
    if not isinstance(config, dict):
        raise ConfigError(f"{where}: config={config!r:.100} is not a mapping; write keys and values below it")
    kind = config.get("type", "native")
    if kind not in KINDS:
        raise ConfigError(f"{where}: config.type={kind!r:.50}: it is one of {listed(KINDS)}{nearest(str(kind), KINDS)}")
    if kind == "mcp":
        from burnish.agents.tools.mcp import load_mcp_tools  # needs the package mcp

        tools = load_mcp_tools(entry, where, folder)
        for tool in tools:
            tool.tool_schema = check_schema(tool.tool_schema, where)
        return tools
    keys = LONG if "class_name" in entry else SHORT
    check_keys(entry, keys, where)
    return [_long(entry, config, folder, parts, where) if keys is LONG else _short(entry, config, parts, where)]


def _long(entry: dict[str, Any], config: dict[str, Any], folder: Path, parts: Parts, where: str) -> BaseTool:
    target = entry["class_name"]
    if not isinstance(target, str):
        raise ConfigError(f"{where}: class_name={target!r:.100}: write package.module.Class or file.py:Class")
    schema = None if entry.get("tool_schema") is None else check_schema(entry["tool_schema"], where)
    found = load_from_folder(target, folder, f"{where}: class_name")
    about = f"{where}: class_name={target}"
    if isinstance(found, FunctionTool):
        return _redescribed(found, schema, config, about)
    if not isinstance(found, type) or not issubclass(found, BaseTool):
        fix = "put @function_tool above it" if inspect.isroutine(found) else "derive it from BaseTool"
        raise ConfigError(f"{about}: {found!r:.100} is not a tool; {fix} (both are in burnish.agents.tools)")
    return _made(found, config, schema, parts, about)


def _redescribed(tool: FunctionTool, schema: dict[str, Any] | None, config: dict[str, Any], about: str) -> FunctionTool:
    if others := config.keys() - {"type"}:
        raise ConfigError(f"{about}: config has {listed(others)}, but a function takes none; derive from BaseTool")
    if schema is None:
        return tool
    given = schema["function"]["name"]
    if given != tool.name:
        raise ConfigError(
            f"{about}: the schema's name is {given}, and the function's {tool.name}; give one of them the other's "
            f"name, as with @function_tool(name={given!r})"
        )
    check_agreement(schema, tool.tool_schema, f"the function {tool.name}", about)
    return FunctionTool(tool.function, schema, tool.observes)


def _short(entry: dict[str, Any], config: dict[str, Any], parts: Parts, where: str) -> BaseTool:
    name = entry.get("name")
    if not isinstance(name, str) or name not in BUILT_IN:
        raise ConfigError(
            f"{where}: name={name!r:.100}: an entry without class_name is a built-in tool, one of "
            f"{listed(BUILT_IN)}{nearest(str(name), BUILT_IN)}"
        )
    cls = load_target(BUILT_IN[name], name)
    own = cls.SCHEMA["function"]
    parameters = entry.get("parameters")
    if parameters is None:
        parameters = own["parameters"]
    elif isinstance(parameters, dict) and parameters.get("type") != "object":
        required = [one for one in own["parameters"]["required"] if one in parameters]
        parameters = {"type": "object", "properties": parameters, "required": required}
    described = {"name": name, "description": entry.get("description", own["description"]), "parameters": parameters}
    schema = check_schema({"type": "function", "function": described}, where)
    return _made(cls, config, schema, parts, f"{where} ({name})")


def _made(
    cls: type[BaseTool], config: dict[str, Any], schema: dict[str, Any] | None, parts: Parts, about: str
) -> BaseTool:
    own = getattr(cls, "SCHEMA", None)
    if own is not None:
        own = check_schema(own, f"{about}: SCHEMA of {cls.__name__}")
        if schema is not None and parameters_of(schema) != parameters_of(own):
            check_agreement(schema, own, f"the tool {own['function']['name']}", about)
    shown, failed = schema or own or {}, f"it could not be made with (config, tool_schema), config={config!r:.200}"

    def make() -> BaseTool:
        taken = inspect.signature(cls).parameters
        return cls(config, shown, **{name: part for name, part in parts.items() if name in taken})

    tool = made(make, about, failed)
    if not getattr(tool, "tool_schema", None):  # a constructor may set its own
        raise ConfigError(
            f"{about}: tool_schema is missing: {cls.__name__} has no SCHEMA, so set the schema to show the model"
        )
    tool.tool_schema = check_schema(tool.tool_schema, about)
    return tool
