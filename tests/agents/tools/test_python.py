"""The Python tool: what a program wrote and how it ended; a sandbox that cannot run is nobody's observation."""

import asyncio
import subprocess

import pytest

from burnish.agents.tools import python as module
from burnish.agents.tools.python import MOST_CHARACTERS, PythonTool
from burnish.config.reward import SandboxConfig
from burnish.errors import ToolFailure
from burnish.sandbox import Outcome


@pytest.fixture(scope="module")
def tool():
    made = PythonTool({}, PythonTool.SCHEMA, sandbox=SandboxConfig(timeout=30.0, memory_limit_mb=128))
    reason = asyncio.run(made.unavailable_reason())
    if reason is not None:
        permitted = subprocess.run(["unshare", "--map-root-user", "--mount", "--net", "true"]).returncode == 0
        (pytest.fail if permitted else pytest.skip)(reason)
    yield made
    asyncio.run(made.close())


@pytest.mark.parametrize(
    ("code", "told", "succeeded"),
    [
        ("print(6 * 7)", ["42"], 1),
        ("x = 1", ["[the program printed nothing]"], 1),
        ("import sys; print('out'); print('warning', file=sys.stderr)", ["out\nwarning"], 1),
        ("print('before'); 1 / 0", ["before\nTraceback", "ZeroDivisionError", "[ended with exit code 1]"], 0),
        ("def f(:", ["SyntaxError", "[ended with exit code 1]"], 0),
        ("x = bytearray(2**30)", ["[stopped: it used more than 128 MiB of memory]"], 0),
        ("print('x' * 3 * 2**20)", ["[stopped: it wrote more than 1048576 bytes]", "characters left out]"], 0),
        ("print('é\\U0001f600')", ["é😀"], 1),
    ],
)
def test_the_model_is_shown_what_the_program_did(call, tool, code, told, succeeded):
    result = call(tool, code=code)
    assert result.kind == "ok" and all(words in result.text for words in told), result.text
    assert result.metrics["succeeded"] == succeeded and result.metrics["program_seconds"] >= 0
    assert len(result.text) < 2 * MOST_CHARACTERS + 200


def test_the_model_is_shown_that_the_program_took_too_long(call, tool):
    hasty = PythonTool({}, PythonTool.SCHEMA, sandbox=SandboxConfig(timeout=0.5, memory_limit_mb=128))
    result = call(hasty, code="while True: pass")
    asyncio.run(hasty.close())
    assert (result.kind, result.text) == ("ok", "[stopped: it took longer than 0.5 seconds]")
    assert result.metrics["succeeded"] == 0 and result.metrics["program_seconds"] >= 0


def test_nothing_is_kept_between_calls(call, tool):
    assert call(tool, code="x = 5; open('note', 'w').write('5')").kind == "ok"
    assert "NameError" in call(tool, code="print(x)").text
    assert "FileNotFoundError" in call(tool, code="print(open('note').read())").text
    assert "every call is a new program" in PythonTool.SCHEMA["function"]["description"].lower()


class Sandbox:
    """Gives the same outcome to every program, after a while."""

    def __init__(self, outcome):
        self.outcome, self.running, self.most, self.seconds = outcome, 0, 0, 0.0

    async def run(self, program, limits):
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        return self.outcome

    async def unavailable_reason(self):
        return self.outcome.reason or None


@pytest.fixture
def make(monkeypatch):
    def make(outcome, **settings):
        sandbox = Sandbox(outcome)
        monkeypatch.setattr(module, "open_sandbox", lambda config: sandbox)
        return PythonTool({}, PythonTool.SCHEMA, sandbox=SandboxConfig(**settings)), sandbox

    return make


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome("failed", reason="no namespaces", refused=True), "not let programs be isolated: no namespaces.*Ways"),
        (Outcome("failed", reason="the supervisor died"), "tool python: execute: the program could not be run: the s"),
    ],
)
def test_a_sandbox_that_cannot_run_ends_the_trajectory(call, make, outcome, words):
    tool, _ = make(outcome)
    with pytest.raises(ToolFailure, match=words):
        call(tool, code="print(1)")
    assert asyncio.run(tool.unavailable_reason()) == outcome.reason


def test_no_more_programs_run_at_once_than_may_and_waiting_is_not_their_time(make, run_calls):
    tool, sandbox = make(Outcome("finished", 0, "ok"), max_concurrent=2)
    sandbox.seconds = 0.4  # 3.2 s for all
    results = run_calls({"python": tool}, *[("python", '{"code": ""}')] * 16, at_once=True, timeout=2.0)
    assert [result.kind for result in results] == ["ok"] * 16
    assert sandbox.most == 2
