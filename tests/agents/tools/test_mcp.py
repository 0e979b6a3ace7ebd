"""MCP tools against real server processes: one made with the `mcp` package, and one by hand that misbehaves."""

import asyncio
import functools
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from burnish import waits
from burnish.agents.parsers import ToolCall
from burnish.agents.tools import mcp, mcp_session
from burnish.agents.tools.base import ToolError, ToolResponse
from burnish.agents.tools.load import load_tools
from burnish.agents.tools.mcp import McpTool, load_mcp_tools
from burnish.agents.tools.session import ToolSession
from burnish.config.reward import SandboxConfig
from burnish.errors import ConfigError, NotAvailable, ToolFailure, install_command
from tests.processes import until

SERVER = Path(__file__).parent / "mcp_server.py"

# Speaks the protocol by itself, so that it can break it. A tool's name is what it does.
BY_HAND = r"""
import json, os, signal, sys, time

def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()

TOOLS = ["echo", "silent", "freeze", "garbage", "flood", "die", "die_after", "wrong_result", "internal_error",
         "bad_params", "stubborn"]
print("ready", file=sys.stderr, flush=True)
for line in sys.stdin:
    request = json.loads(line)
    method, identity, params = request["method"], request.get("id"), request.get("params", {})
    text = f"{os.getpid()} {json.dumps(params.get('arguments'))}"
    answer = {"id": identity, "result": {"content": [{"type": "text", "text": text}]}}
    if method == "initialize":
        if "deaf" in sys.argv:
            time.sleep(60)
        facts = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
        send({"id": identity, "result": {**facts, "serverInfo": {"name": "hand", "version": "1"}}})
    elif method == "tools/list":
        if "paged" in sys.argv and not params.get("cursor"):
            names, more = TOOLS[:3], {"nextCursor": "rest"}
        else:
            names, more = TOOLS[3:] if "paged" in sys.argv else [] if "empty" in sys.argv else TOOLS, {}
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
        send({"id": identity, "result": {"tools": tools, **more}})
    elif method == "ping":
        send({"id": identity, "result": {}})
    elif method == "tools/call":
        match params["name"]:
            case "echo":
                send(answer)
            case "freeze":
                if "sign" in (params.get("arguments") or {}):
                    open(params["arguments"]["sign"], "w").close()
                time.sleep(600)
            case "garbage":
                print("loading the model ...", flush=True)
            case "flood":
                while True:
                    os.write(1, b"x" * 65536)
            case "die":
                print("out of cheese", file=sys.stderr, flush=True)
                sys.exit(3)
            case "die_after":
                send(answer)
                sys.exit(0)
            case "wrong_result":
                send({"id": identity, "result": {"content": "no list"}})
            case "internal_error":
                send({"id": identity, "error": {"code": -32603, "message": "a bug"}})
            case "bad_params":
                send({"id": identity, "error": {"code": -32602, "message": "a must be a number"}})
            case "stubborn":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                send(answer)
                time.sleep(60)
"""


def entry(*arguments, selected=None, timeout=60.0, **server):
    """An entry with one inline server."""
    command = {"command": sys.executable, "args": [str(argument) for argument in arguments], **server}
    settings = {"servers": {"mine": command}} | ({"tool_selected_list": selected} if selected is not None else {})
    return {"config": {"type": "mcp", "timeout": timeout}, "mcp": settings}


def by_name(tools):
    return {tool.name: tool for tool in tools}


async def text(tool, **parameters):
    response, reward, metrics = await tool.execute("t1", parameters)
    assert isinstance(response, ToolResponse) and (reward, metrics) == (0.0, {})
    return response.text


def is_gone(pid):
    return until(lambda: not Path(f"/proc/{pid}").exists())


def pid_of(answer):
    return int(answer.split()[0])


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The file of the server by hand, in a folder with a `servers.json` that names it."""
    file = tmp_path_factory.mktemp("hand") / "by_hand.py"
    file.write_text(BY_HAND)
    servers = {"mine": {"type": "stdio", "command": sys.executable, "args": [str(file)]}}
    (file.parent / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    return file


@pytest.fixture(scope="module")
def hand(script):
    """`hand(timeout)` → the tools of the server by hand, listed once; each test's event loop has its own process."""

    @functools.cache
    def load(timeout=60.0, *arguments):
        return by_name(load_mcp_tools(entry(script, *arguments, timeout=timeout), "here"))

    return load


def run_with(tools, scenario):
    """Await `scenario(tools)` in an event loop, then end the server's process."""

    async def run():
        try:
            return await scenario(tools)
        finally:
            await next(iter(tools.values())).close()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def tools():
    """Of the package's server."""
    return by_name(load_mcp_tools(entry(SERVER, env={"FLAVOUR": "mint"}), "here"))


@pytest.fixture(scope="module")
def run(tools):
    """Runs coroutines on one event loop, so that one process of the package's server answers all."""
    with asyncio.Runner() as runner:
        yield runner.run
        runner.run(tools["add"].close())


@pytest.fixture(autouse=True)
def _quick_end(monkeypatch):
    """Servers that ignore their end are killed soon."""
    for name in ("PROCESS_TERMINATION_TIMEOUT", "FORCE_KILL_TIMEOUT"):
        monkeypatch.setattr(f"mcp.client.stdio.{name}", 0.1)


def test_the_servers_own_schemas_and_results_are_taken(tools, run, monkeypatch):
    assert set(tools) == {"add", "about", "wait", "fail", "table", "mixed", "long"}
    assert all(isinstance(tool, McpTool) for tool in tools.values())
    schema = tools["add"].tool_schema
    assert schema["type"] == "function" and schema["function"]["description"] == "Add two numbers."
    parameters = schema["function"]["parameters"]
    assert parameters["required"] == ["a", "b"] and parameters["properties"]["a"]["type"] == "integer"
    assert run(text(tools["add"], a=2, b=40)) == "42"
    first, second = run(text(tools["about"])), run(text(tools["about"]))  # one process, with its environment
    assert first == second and first.split()[1] == "mint" and pid_of(first) != os.getpid()
    expected = ["before", "[image/png image]", "[audio/wav audio]", "a note", "[binary resource memo://b]"]
    assert run(text(tools["mixed"])).split("\n") == expected
    assert json.loads(run(text(tools["table"]))) == {"rows": 3}
    for name, given, told in (("fail", {"reason": "no luck"}, "no luck"), ("add", {"a": "x", "b": 1}, "integer")):
        with pytest.raises(ToolError, match=told):  # for the model to read
            run(text(tools[name], **given))
    monkeypatch.setattr(mcp, "MAX_RESULT", 1000)
    assert len(run(text(tools["long"], characters=1000))) == 1000
    with pytest.raises(ToolFailure, match="tool long: a result of 1001 characters; at most 1000 are taken"):
        run(text(tools["long"], characters=1001))


def test_calls_run_at_the_same_time(tools, run):
    async def many():
        return await asyncio.gather(*(text(tools["wait"], seconds=1.0) for _ in range(64)))

    begin = time.perf_counter()
    assert run(many()) == ["waited"] * 64
    assert time.perf_counter() - begin < 50.0  # one after another, they take 64 s


def test_a_slow_call_fails_alone_and_the_process_stays(tools, run, monkeypatch):
    monkeypatch.setattr(mcp_session, "PING_SECONDS", 60.0)
    session, before = tools["wait"].session, run(text(tools["about"]))

    async def slow_and_quick():
        with monkeypatch.context() as patch:
            patch.setattr(session, "_timeout", 0.3)
            slow = asyncio.create_task(text(tools["wait"], seconds=600))
            await asyncio.sleep(0)  # it is asked, with this limit
        quick = text(tools["wait"], seconds=0.01)
        return await asyncio.gather(slow, quick, return_exceptions=True)

    async def answered():
        while session._connection._ping is not None:
            await asyncio.sleep(0.01)

    slow, quick = run(slow_and_quick())
    assert quick == "waited" and isinstance(slow, ToolFailure)
    assert str(slow) == "MCP server mine, tool wait: did not answer in 0.3 s; raise config.timeout of its entry"
    run(answered())  # the ping
    assert run(text(tools["about"])) == before


def test_a_death_fails_the_calls_in_flight_alone_and_the_next_call_starts_it_again(hand):
    async def scenario(tools):
        before = pid_of(await text(tools["die_after"]))
        while not tools["echo"].session._connection.cause:  # until its end is seen
            await asyncio.sleep(0.01)
        pids = [before, pid_of(await text(tools["echo"]))]
        failures = await asyncio.gather(text(tools["silent"]), text(tools["die"]), return_exceptions=True)
        return [*pids, pid_of(await text(tools["echo"]))], failures

    pids, failures = run_with(hand(), scenario)
    for failure, name in zip(failures, ("silent", "die"), strict=True):
        assert isinstance(failure, ToolFailure)
        assert str(failure).startswith(f"MCP server mine, tool {name}: exited; its standard error ends with:")
        assert str(failure).endswith("out of cheese")
    assert len(set(pids)) == 3 and all(is_gone(pid) for pid in pids[:2])


def test_closing_leaves_no_process_and_a_later_call_starts_another(hand):
    async def scenario():
        tools = hand(61.0)  # loaded inside a running loop, too
        first = await text(tools["echo"], a=1)
        await asyncio.gather(*(tool.close() for tool in tools.values()))
        assert is_gone(pid_of(first))
        second = await text(tools["echo"])
        await tools["echo"].close()
        return first, second

    first, second = asyncio.run(scenario())
    assert first.endswith('{"a": 1}') and pid_of(first) != pid_of(second) and is_gone(pid_of(second))
    assert is_gone(pid_of(run_with(hand(), lambda tools: text(tools["stubborn"])))), "one that ignores its end"


@pytest.mark.parametrize("name", ["freeze", "flood"])
def test_a_server_that_is_stuck_is_ended_and_the_next_call_starts_it_again(hand, monkeypatch, name):
    monkeypatch.setattr(mcp_session, "PING_SECONDS", 0.3)

    async def scenario(tools):
        before = pid_of(await text(tools["echo"]))
        with monkeypatch.context() as patch:
            patch.setattr(tools[name].session, "_timeout", 0.5)
            with pytest.raises(ToolFailure, match=rf"tool {name}: did not answer in 0.5 s"):
                await text(tools[name])
        with pytest.raises(ToolFailure, match="was ended: it did not answer a ping within 0.3 s"):
            await text(tools["echo"])  # it was in flight when the server was found to be stuck
        return before, pid_of(await text(tools["echo"]))

    before, after = run_with(hand(), scenario)
    assert before != after and is_gone(before)


def test_a_call_cancelled_from_outside_frees_the_caller_at_once_and_finds_a_stuck_server(hand, monkeypatch, tmp_path):
    monkeypatch.setattr(mcp_session, "PING_SECONDS", 0.2)

    async def scenario(tools):
        before = pid_of(await text(tools["echo"]))
        call = asyncio.create_task(text(tools["freeze"], sign=str(tmp_path / "frozen")))
        assert await asyncio.to_thread(until, (tmp_path / "frozen").exists)
        begin = time.perf_counter()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        took = time.perf_counter() - begin
        assert await asyncio.to_thread(is_gone, before)
        await text(tools["echo"])
        return took

    assert run_with(hand(600.0), scenario) < 60.0  # of the 600 s of the call


@pytest.mark.parametrize(
    "name, kind, told",
    [
        ("garbage", ToolFailure, "wrote a line that is no message of the protocol"),
        ("wrong_result", ToolFailure, "gave a result that cannot be used"),
        ("internal_error", ToolFailure, "answered with an error (-32603: a bug)"),
        ("bad_params", ToolError, "a must be a number"),
    ],
)
def test_answers_that_break_the_protocol_are_failures_and_the_next_call_continues(hand, name, kind, told):
    async def scenario(tools):
        with pytest.raises(kind) as failure:
            await text(tools[name])
        assert (await text(tools["echo"])).endswith("{}")
        return str(failure.value)

    assert told in run_with(hand(), scenario)


def test_another_event_loop_gets_a_new_process_and_waits_for_no_closed_one(hand):
    tools = hand()
    pids = [pid_of(asyncio.run(text(tools["echo"]))) for _ in range(2)]
    assert pids[0] != pids[1] and all(is_gone(pid) for pid in pids)
    loop = asyncio.new_event_loop()
    former = pid_of(loop.run_until_complete(text(tools["echo"])))
    loop.close()
    later_one = pid_of(run_with(tools, lambda tools: text(tools["echo"])))
    os.kill(former, signal.SIGKILL)  # nothing can end it through the closed loop
    assert later_one != former and is_gone(later_one)


def test_all_pages_of_the_list_are_read_and_selected_tools_taken_once_in_their_order(hand, script):
    assert {"echo", "garbage", "stubborn"} <= hand(60.0, "paged").keys()
    settings = {"mcp_servers_config_path": "servers.json", "tool_selected_list": ["die", "echo", "die"]}
    tools = load_mcp_tools({"config": {"type": "mcp"}, "mcp": settings}, "here", script.parent)
    assert [tool.name for tool in tools] == ["die", "echo"] and tools[0].session is tools[1].session


def test_an_entry_of_the_tools_file_gives_tools_that_a_trajectory_can_call(script):
    (script.parent / "tools.yaml").write_text(
        "tools:\n"
        "- name: calculator\n"
        "- config: {type: mcp}\n"
        "  mcp: {mcp_servers_config_path: servers.json, tool_selected_list: [echo, bad_params]}\n"
    )
    tools = load_tools(str(script.parent / "tools.yaml"), retriever=lambda: None, sandbox=SandboxConfig())
    assert list(tools) == ["calculator", "echo", "bad_params"]
    del tools["calculator"]

    async def scenario(tools):
        session = ToolSession(tools, "t1", {}, 60.0)
        results = [await session.call(ToolCall(name, '{"a": 1}')) for name in tools]
        await session.close()
        return results

    echo, refused = run_with(tools, scenario)
    assert echo.kind == "ok" and echo.text.endswith('{"a": 1}')
    assert (refused.kind, refused.text) == ("error", "a must be a number")


def test_a_tool_class_of_the_user_words_the_results(script, tmp_path):
    (tmp_path / "own.py").write_text(
        "from burnish.agents.tools.mcp import McpTool\n"
        "class Loud(McpTool):\n"
        "    def text_of(self, result):\n"
        "        return self.config['before'] + super().text_of(result).split()[1]\n"
    )
    wanted = entry(script, selected=["echo"])
    wanted |= {"class_name": "own.py:Loud", "config": {"type": "mcp", "before": "> "}}
    tools = by_name(load_mcp_tools(wanted, "here", tmp_path))
    assert run_with(tools, lambda tools: text(tools["echo"])) == "> {}"


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["-c", "import sys; print('oh no', file=sys.stderr); sys.exit(1)"], "ends with:\noh no"),
        (["-c", "print('Hello!')"], "wrote a line that is no message of the protocol"),
        (["by hand", "deaf"], "did not list its tools within 0.5 s of its start"),
        (["by hand", "empty"], "mine has no tools"),
    ],
)
def test_a_server_that_cannot_list_its_tools_is_a_mistake_in_the_file(script, monkeypatch, arguments, told):
    arguments = [script if argument == "by hand" else argument for argument in arguments]
    if "deaf" in arguments:
        monkeypatch.setattr(mcp_session, "START_SECONDS", 0.5)
    with pytest.raises(ConfigError) as error:
        load_mcp_tools(entry(*arguments), "tools.yaml, entry 3")
    assert str(error.value).startswith("tools.yaml, entry 3: ") and told in str(error.value)


def test_names_of_tools_that_no_server_has_or_two_have_and_missing_commands_are_reported(script):
    missing, two = entry(script, selected=["ecko"]), entry(script)
    two["mcp"]["servers"]["other"] = two["mcp"]["servers"]["mine"]
    for wanted, words in (
        (missing, r"here: mcp.tool_selected_list: there is no tool ecko; .* did you mean echo\?"),
        (two, "mine, other both have a tool echo; choose others"),
        (entry(command="no-such-program"), r"server mine cannot be run \(FileNotFoundError: .*no-such-program"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_mcp_tools(wanted, "here")


def test_to_list_tools_is_a_wait(monkeypatch):
    seen = []

    async def list_tools(self):
        seen.extend((wait.kind, wait.subject) for wait in waits.longest())
        return []

    monkeypatch.setattr(mcp_session.McpSession, "list_tools", list_tools)
    with pytest.raises(ConfigError, match="mine has no tools"):
        load_mcp_tools(entry(), "here")
    assert seen == [("tool", "the tools of MCP servers: mine")] and not waits.longest()


@pytest.mark.parametrize(
    "changed, told",
    [
        ({"mpc": {}}, "here: unknown key 'mpc'; it has class_name, config, mcp; did you mean mcp?"),
        ({"tool_schema": {}}, "unknown key 'tool_schema'"),
        ({"config": {"type": "mcp", "time_out": 1}}, "here: config: unknown key 'time_out'"),
        ({"config": {"type": "mcp", "timeout": "1"}}, "config.timeout='1': write the seconds"),
        ({"config": {"type": "mcp", "timeout": 0}}, "config.timeout=0: write the seconds"),
        ({"class_name": "burnish.agents.tools.base.BaseTool"}, "is not a subclass of burnish.agents.tools.mcp.McpTool"),
        ({"mcp": None}, "here: mcp: expected a mapping, got None"),
        ({"mcp": {}}, "mcp needs either mcp_servers_config_path (a JSON file) or servers"),
        ({"mcp": {"server": {}}}, "here: mcp: unknown key 'server'; it has"),
        ({"mcp": {"servers": {}}}, "there is no server in it"),
        ({"mcp": {"servers": {"a": 1}}}, "MCP server a: expected a mapping, got 1"),
        ({"mcp": {"servers": {"a": {"args": []}}}}, "MCP server a: command=None: write the program"),
        ({"mcp": {"servers": {"a": {"command": "x", "args": "y"}}}}, "args='y': write a list of strings"),
        ({"mcp": {"servers": {"a": {"command": "x", "env": {"N": 1}}}}}, "env={'N': 1}: values must be strings"),
        ({"mcp": {"servers": {"a": {"comand": "x"}}}}, "MCP server a: unknown key 'comand'"),
        ({"mcp": {"mcp_servers_config_path": "no.json"}}, "mcp.mcp_servers_config_path=no.json: cannot be read"),
        ("{", "mcp.mcp_servers_config_path=servers.json: cannot be read"),
        ('{"servers": {}}', "mcp.mcp_servers_config_path=servers.json: expected"),
    ],
)
def test_mistakes_in_an_entry_are_reported_with_the_key_and_the_fix(tmp_path, changed, told):
    if isinstance(changed, str):  # what the file of servers holds
        (tmp_path / "servers.json").write_text(changed)
        changed = {"mcp": {"mcp_servers_config_path": "servers.json"}}
    wanted = {"config": {"type": "mcp"}, "mcp": {"servers": {"a": {"command": "x"}}}, **changed}
    with pytest.raises(ConfigError) as error:
        load_mcp_tools(wanted, "here", tmp_path)
    assert str(error.value).startswith("here: ") and told in str(error.value)


def test_what_is_not_there_is_reported_by_name(monkeypatch):
    for server, name in (({"url": "http://localhost/mcp"}, "http://localhost/mcp"), ({"type": "sse"}, "sse")):
        with pytest.raises(NotAvailable, match=rf"MCP over HTTP \(here: MCP server far, {name}\)"):
            load_mcp_tools({"mcp": {"servers": {"far": server}}}, "here")
    monkeypatch.setitem(sys.modules, "burnish.agents.tools.mcp_session", None)
    with pytest.raises(ConfigError, match=re.escape(f"MCP needs the mcp package: {install_command('mcp')}")):
        load_mcp_tools(entry("x"), "here")
