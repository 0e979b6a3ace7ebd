"""Tools written down in a test, and the files that name them."""

import asyncio
import json
from textwrap import dedent

import pytest

from burnish.agents.parsers.base import ToolCall
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
def call(open_session):
    """`call(tool, argument=…)` → the result of one call in a session of its own."""

    def run(tool, tools_kwargs=None, timeout=60.0, **arguments):
        async def one():
            session = open_session({tool.name: tool}, timeout, **{tool.name: tools_kwargs or {}})
            try:
                return await session.call(ToolCall(tool.name, json.dumps(arguments)))
            finally:
                await session.close()

        return asyncio.run(one())

    return run


@pytest.fixture
def make_tool():
    """`make_tool(execute=…, create=…)` → a tool with these methods, that keeps a list of what was called."""

    def make(name="mine", properties=None, required=(), **methods):
        cls = type("Mine", (BaseTool,), {"execute": BaseTool.execute, **methods})
        cls.__abstractmethods__ = frozenset()
        return cls({}, function_schema(name, "", properties or {}, list(required)))

    return make
