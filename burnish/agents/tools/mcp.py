"""Tools of MCP servers: an entry of the tools' YAML file names servers, and each of their tools is one of the run's.

Names and schemas come from the servers, which are started and ended once when the file is loaded; `mcp_session.py` has
the rest. The model is shown an error that a tool reports; a server that fails ends the trajectory.
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from burnish.agents.targets import check_keys, load_from_folder
from burnish.agents.tools.base import Answer, BaseTool, ToolError, ToolResponse
from burnish.errors import ConfigError, NotAvailable, ToolFailure, install_command
from burnish.loop_thread import run_to_end
from burnish.user_code import listed, nearest
from burnish.waits import waiting

if TYPE_CHECKING:
    from burnish.agents.tools.mcp_session import McpSession

TIMEOUT = 30.0  # seconds for one call
AROUND_SECONDS = 30.0  # for the process of a server to be made and to end, around what it is started for
MAX_RESULT = 1_000_000  # characters: more is no observation, and would hold up the run while it is tokenised
Offered: TypeAlias = "dict[str, list[tuple[dict[str, Any], McpSession]]]"
SERVERS_FILE, SERVERS, SELECTED = "mcp_servers_config_path", "servers", "tool_selected_list"


class McpTool(BaseTool):
    def __init__(self, config: Mapping[str, Any], tool_schema: Mapping[str, Any], session: "McpSession"):
        super().__init__(config, tool_schema)
        self.session = session

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Answer:
        result = await self.session.call(self.name, parameters)
        text = self.text_of(result)
        if len(text) > MAX_RESULT:
            raise ToolFailure(
                f"MCP server {self.session.name}, tool {self.name}: a result of {len(text)} characters; "
                f"at most {MAX_RESULT} are taken"
            )
        if result.is_error:
            raise ToolError(text or f"{self.name} failed without saying why")
        return ToolResponse(text), 0.0, {}

    def text_of(self, result: Any) -> str:
        """What the model is shown of a `CallToolResult`."""
        if not result.content and result.structured_content is not None:
            return json.dumps(result.structured_content, ensure_ascii=False)
        return "\n".join(_block_text(block) for block in result.content)

    async def close(self) -> None:
        await self.session.close()


def load_mcp_tools(entry: Mapping[str, Any], where: str, folder: Path | None = None) -> list[BaseTool]:
    """The tools of the servers that an entry names. `where` opens the errors; a relative file is looked for in
    `folder`, then in the working directory."""
    check_keys(entry, ("class_name", "config", "mcp"), where)
    config, settings = _mapping(entry.get("config") or {}, f"{where}: config"), entry.get("mcp")
    settings = _mapping(settings, f"{where}: mcp")
    check_keys(settings, (SERVERS_FILE, SERVERS, SELECTED), f"{where}: mcp")
    folder = folder or Path()
    cls, target = McpTool, entry.get("class_name")
    if target is not None:
        cls = load_from_folder(str(target), folder, f"{where}: class_name")
        if not isinstance(cls, type) or not issubclass(cls, McpTool):
            raise ConfigError(
                f"{where}: class_name={target}: {cls!r} is not a subclass of burnish.agents.tools.mcp.McpTool; "
                "leave class_name out unless you have one"
            )
    if cls is McpTool:
        check_keys(config, ("type", "timeout"), f"{where}: config")
    timeout = config.get("timeout", TIMEOUT)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
        raise ConfigError(f"{where}: config.timeout={timeout!r}: write the seconds for one call, more than 0")
    sessions = [
        _session(name, server, float(timeout), f"{where}: MCP server {name}")
        for name, server in _servers(settings, where, folder).items()
    ]
    offered = _offered(sessions, where)
    return [
        cls(config, {"type": "function", "function": function}, session)
        for function, session in _selected(offered, settings.get(SELECTED), where)
    ]


def _servers(settings: Mapping[str, Any], where: str, folder: Path) -> Mapping[str, Any]:
    path, inline = settings.get(SERVERS_FILE), settings.get(SERVERS)
    if (path is None) == (inline is None):
        raise ConfigError(f"{where}: mcp needs either {SERVERS_FILE} (a JSON file) or {SERVERS} (a mapping by name)")
    if path is not None:
        where = f"{where}: mcp.{SERVERS_FILE}={path}"
        file = Path(str(path)).expanduser()
        file = folder / file if (folder / file).is_file() else file
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{where}: cannot be read ({error})") from error
        if not isinstance(content, dict) or "mcpServers" not in content:
            raise ConfigError(f'{where}: expected {{"mcpServers": {{name: {{"command": …, "args": […]}}}}}}')
        inline = content["mcpServers"]
    servers = _mapping(inline, f"{where}: servers")
    if not servers:
        raise ConfigError(f"{where}: there is no server in it")
    return servers


def _session(name: str, server: Any, timeout: float, where: str) -> "McpSession":
    server = _mapping(server, where)
    kind = server.get("type", server.get("transport", "stdio"))
    if "url" in server or kind != "stdio":
        raise NotAvailable(
            f"MCP over HTTP ({where}, {server.get('url', kind)})", "Start the server with a command, over stdio"
        )
    check_keys(server, ("command", "args", "env", "type", "transport"), where)
    command, arguments, environment = server.get("command"), server.get("args") or [], server.get("env") or {}
    if not isinstance(command, str) or not command:
        raise ConfigError(f"{where}: command={command!r}: write the program that is the server")
    if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
        raise ConfigError(f"{where}: args={arguments!r:.200}: write a list of strings")
    if not all(isinstance(value, str) for value in _mapping(environment, f"{where}: env").values()):
        raise ConfigError(f"{where}: env={environment!r:.200}: values must be strings; put numbers in quotes")
    try:
        from burnish.agents.tools.mcp_session import McpSession
    except ImportError as error:
        raise ConfigError(f"{where}: MCP needs the mcp package: {install_command('mcp')} ({error})") from error
    return McpSession(str(name), command, arguments, dict(environment), timeout)


def _offered(sessions: "list[McpSession]", where: str) -> Offered:
    async def ask() -> list[Any]:
        return await asyncio.gather(*(session.list_tools() for session in sessions))

    from burnish.agents.tools.mcp_session import START_SECONDS

    names = listed(session.name for session in sessions)
    try:
        with waiting("tool", "", f"the tools of MCP servers: {names}", START_SECONDS + AROUND_SECONDS):
            lists = run_to_end(ask())
    except ToolFailure as failure:
        raise ConfigError(f"{where}: {failure}") from failure
    found: Offered = {}
    for session, tools in zip(sessions, lists, strict=True):
        for tool in tools:
            function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
            found.setdefault(tool.name, []).append((function, session))
    if not found:
        raise ConfigError(f"{where}: {names} has no tools")
    return found


def _selected(offered: Offered, names: Any, where: str) -> "list[tuple[dict[str, Any], McpSession]]":
    if names is None:
        names = list(offered)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where}: mcp.{SELECTED}={names!r:.200}: write a list of names, or leave it out for all")
    for name in names:
        if name not in offered:
            raise ConfigError(
                f"{where}: mcp.{SELECTED}: there is no tool {name}; there are {listed(offered)}{nearest(name, offered)}"
            )
        if len(offered[name]) > 1:
            owners = listed(session.name for _, session in offered[name])
            raise ConfigError(f"{where}: {owners} both have a tool {name}; choose others with mcp.{SELECTED}")
    return [offered[name][0] for name in dict.fromkeys(names)]


def _block_text(block: Any) -> str:
    if block.type == "text":
        return block.text
    if block.type == "resource":
        text = getattr(block.resource, "text", None)
        return text if text is not None else f"[{block.resource.mime_type or 'binary'} resource {block.resource.uri}]"
    if block.type == "resource_link":
        return f"[resource {block.uri}]"
    return f"[{block.mime_type} {block.type}]"


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected a mapping, got {value!r:.200}")
    return value
