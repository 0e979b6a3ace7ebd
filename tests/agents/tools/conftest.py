"""Tools written down in a test, and the files that name them."""

import asyncio
import json
from textwrap import dedent

import pytest

from burnish.agents.parsers import ToolCall
from burnish.agents.tools.base import BaseTool
from burnish.agents.tools.load import load_tools
from burnish.agents.tools.schema import function_schema
from burnish.agents.tools.session import ToolSession
from burnish.config.reward import SandboxConfig


@pytest.fixture
def load(tmp_path):
    """`load(yaml)` or `load(yaml, my_tools=source)` → the tools of that file, with those Python files beside it."""

    def make(text, retriever=None, **files):
        for name, source in files.items():
            (tmp_path / f"{name}.py").write_text(dedent(source))
        (tmp_path / "tools.yaml").write_text(dedent(text))
        return load_tools(str(tmp_path / "tools.yaml"), retriever=retriever, sandbox=SandboxConfig())

    return make


@pytest.fixture
def open_session():
    """`open_session({name: tool})` → a session for them."""

    def make(tools, timeout=60.0, **tools_kwargs):
        return ToolSession(tools, "trajectory-1", tools_kwargs, timeout)

    return make


@pytest.fixture
def run_calls(open_session):
    """`run_calls({name: tool}, (name, arguments), …)` → the results of these calls in one session, then closed; with
    `reward`, the trajectory's too."""

    def run(tools, *calls, timeout=60.0, reward=False, at_once=False, **tools_kwargs):
        async def trajectory():
            session = open_session(tools, timeout, **tools_kwargs)
            try:
                if at_once:
                    return await asyncio.gather(*(session.call(ToolCall(*call)) for call in calls))
                results = [await session.call(ToolCall(*call)) for call in calls]
                return (results, await session.trajectory_reward()) if reward else results
            finally:
                await session.close()

        return asyncio.run(asyncio.wait_for(trajectory(), 60))

    return run


@pytest.fixture
def call(run_calls):
    """`call(tool, argument=…)` → the result of one call in its own session."""

    def run(tool, tools_kwargs=None, timeout=60.0, **arguments):
        kwargs = {tool.name: tools_kwargs or {}}
        return run_calls({tool.name: tool}, (tool.name, json.dumps(arguments)), timeout=timeout, **kwargs)[0]

    return run


@pytest.fixture
def make_tool():
    """`make_tool(execute=…, create=…)` → a tool with these methods, that keeps a list of what was called."""

    def make(name="mine", properties=None, required=(), **methods):
        cls = type("Mine", (BaseTool,), {"execute": BaseTool.execute, **methods})
        cls.__abstractmethods__ = frozenset()
        return cls({}, function_schema(name, "", properties or {}, list(required)))

    return make
