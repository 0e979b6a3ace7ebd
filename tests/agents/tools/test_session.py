"""One trajectory's tools: what the model did wrong is told to it, what the tool did wrong is a ToolFailure, and what
was created is released."""

import asyncio
import json
import logging
import re
import sys

import numpy as np
import pytest
import torch

from burnish import waits
from burnish.agents import guarded
from burnish.agents.parsers import ToolCall
from burnish.agents.tools import ToolError, ToolResponse
from burnish.errors import ToolFailure


class Log(list):
    """Methods of a tool that write down what they are called with."""

    def methods(self, pause=0.0, reward=1.5):
        async def create(tool, instance_id, **kwargs):
            await asyncio.sleep(pause)
            self.append(("create", instance_id, kwargs))

        async def execute(tool, instance_id, parameters, **kwargs):
            self.append(("execute", instance_id, parameters, kwargs))
            await asyncio.sleep(pause)
            return ToolResponse(f"did {json.dumps(parameters)}"), 0.25, {"n": 1, "status": "fine", "none": None}

        async def calc_reward(tool, instance_id, **kwargs):
            self.append(("calc_reward", instance_id, kwargs))
            return reward

        async def release(tool, instance_id, **kwargs):
            self.append(("release", instance_id, kwargs))

        return {"create": create, "execute": execute, "calc_reward": calc_reward, "release": release}

    @property
    def names(self):
        return [entry[0] for entry in self]


def test_a_trajectory_from_first_call_to_release(make_tool, open_session):
    log = Log()
    tool = make_tool(properties={"x": {"type": "integer"}}, **log.methods())
    unused = make_tool("unused", **log.methods(reward=100.0))
    kwargs = {f"{method}_kwargs": {"from": method} for method in ("create", "execute", "calc_reward", "release")}

    async def trajectory():
        session = open_session({"mine": tool, "unused": unused}, mine=kwargs, unused=None)  # as tables have it
        assert not log
        first, second = [await session.call(ToolCall("mine", f'{{"x": {x}}}')) for x in (1, 2)]
        reward = await session.trajectory_reward()
        await session.close()
        await session.close()
        return first, second, reward

    first, second, reward = asyncio.run(trajectory())
    assert (first.name, first.text, first.kind, first.reward) == ("mine", 'did {"x": 1}', "ok", 0.25)
    assert first.metrics == {"n": 1.0} and 0 <= first.seconds < 60
    assert second.text == 'did {"x": 2}' and reward == 1.5
    assert log == [
        ("create", "trajectory-1", {"from": "create"}),
        ("execute", "trajectory-1", {"x": 1}, {"from": "execute"}),
        ("execute", "trajectory-1", {"x": 2}, {"from": "execute"}),
        ("calc_reward", "trajectory-1", {"from": "calc_reward"}),
        ("release", "trajectory-1", {"from": "release"}),
    ]


def test_calls_at_once_create_once_and_run_together(make_tool, run_calls):
    log, together = Log(), asyncio.Barrier(20)

    async def execute(tool, instance_id, parameters):
        log.append(("execute",))
        await together.wait()  # for the others, which would never come if calls ran one after the other
        return "done", 0.0, {}

    tool = make_tool(**log.methods(pause=0.1) | {"execute": execute})
    results = run_calls({"mine": tool}, *[("mine", "{}")] * 20, at_once=True)
    assert {result.kind for result in results} == {"ok"}
    assert log.names == ["create", *["execute"] * 20, "release"]


def test_mistakes_of_the_model_are_shown_to_it(make_tool, run_calls):
    log = Log()
    tool = make_tool("weather", properties={"city": {"type": "string"}}, required=["city"], **log.methods())
    calls = [("wether", "{}"), ("weather", "{}"), ("weather", "{city: Bonn}"), ("x" * 9999, "")]
    unknown, missing, no_json, long = run_calls({"weather": tool}, *calls)
    assert unknown.kind == "unknown_tool"
    assert unknown.text == "there is no tool 'wether'; the tools are weather; did you mean weather?"
    assert missing.kind == "bad_arguments" and "argument city is missing" in missing.text
    assert no_json.kind == "bad_arguments" and "not valid JSON" in no_json.text
    assert long.kind == "unknown_tool" and len(long.text) < 300
    assert not log, "a tool that was never called has no state"


class BadText(ToolError):
    def __str__(self):
        raise ValueError("no text")


class BadRepr:
    def __repr__(self):
        raise ValueError("no repr")


LIES = [None, "text", ToolResponse("x"), ("x", 0.0), ("x", 0.0, {}, 1), {"text": 1, "reward": 2, "metrics": 3}]
LIES += [BadRepr()]
LIES += [(text, 0.0, {}) for text in (None, b"x", ToolResponse(None), ToolResponse(3), BadRepr())]
LIES += [("x", reward, {}) for reward in ("1", float("nan"), float("inf"), 10**400, [1.0], 1j, True)]
LIES += [("x", 0.0, metrics) for metrics in (["n"], {1: 2}, "metrics")]


@pytest.fixture
def answer(make_tool, call):
    """`answer(value)`: the result of a tool that returns it."""

    def answer(value):
        async def execute(tool, instance_id, parameters):
            return value

        return call(make_tool(execute=execute))

    return answer


@pytest.mark.parametrize("lie", LIES, ids=range(len(LIES)))
def test_results_that_break_the_contract_are_failures(answer, lie):
    with pytest.raises(ToolFailure, match="^tool mine: execute"):
        answer(lie)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("x", 1, {}), ("x", 1.0, {})),
        (["x", None, None], ("x", 0.0, {})),
        ((ToolResponse("x"), 1, {"n": 2, "yes": True, "text": "t"}), ("x", 1.0, {"n": 2.0, "yes": 1.0})),
        (("x", torch.tensor(0.5), {"n": np.float32(2), "far": float("inf")}), ("x", 0.5, {"n": 2.0})),
    ],
)
def test_numbers_of_numpy_and_torch_are_accepted(answer, given, expected):
    result = answer(given)
    assert (result.text, result.reward, result.metrics) == expected


ERRORS = [
    *(ValueError("broken"), SystemExit(1), asyncio.CancelledError(), TimeoutError("mine"), GeneratorExit(), BadText()),
    *(BaseExceptionGroup("several", [asyncio.CancelledError()]), ToolFailure("the server is gone"), ToolError("again")),
]


@pytest.mark.parametrize("method", ["create", "execute", "calc_reward", "release"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_is_a_failure_and_the_rest_is_released(make_tool, run_calls, method, error):
    if method == "execute" and type(error) is ToolError:
        return  # the only one that is for the model to read
    log = Log()

    async def fail(tool, *arguments, **kwargs):
        raise error

    tools = {"other": make_tool("other", **log.methods()), "mine": make_tool(**log.methods() | {method: fail})}
    with pytest.raises(ToolFailure, match=rf"^tool mine: {method}"):
        run_calls(tools, ("other", "{}"), ("mine", "{}"), reward=True)
    assert log.names.count("release") == (1 if method == "release" else 2)


def test_all_are_released_before_failures_are_raised(make_tool, open_session):
    log = Log()

    async def fail(tool, instance_id):
        raise ValueError("stuck")

    async def slow(tool, instance_id):
        await asyncio.sleep(0.1)
        log.append(("release", instance_id))

    async def trajectory():
        tools = {name: make_tool(name, **Log().methods() | {"release": fail}) for name in ("a", "b")}
        session = open_session(tools | {"c": make_tool("c", **Log().methods() | {"release": slow})})
        for name in "abc":
            await session.call(ToolCall(name, "{}"))
        with pytest.raises(ToolFailure, match="tool a: release raised ValueError: stuck.*; tool b: release raised"):
            await session.close()
        assert log.names == ["release"]

    asyncio.run(trajectory())


@pytest.mark.parametrize("method", ["create", "execute", "calc_reward", "release"])
def test_a_method_that_hangs_fails_in_time(make_tool, run_calls, method):
    log = Log()

    async def hang(tool, *arguments, **kwargs):
        try:
            await asyncio.sleep(600)
        finally:
            log.append(("over",))

    words = rf"tool mine: {method} did not end in 0.1 s; make it quicker, or raise actor_rollout_ref.*tool_timeout"
    with pytest.raises(ToolFailure, match=words):
        run_calls({"mine": make_tool(**log.methods() | {method: hang})}, ("mine", "{}"), timeout=0.1, reward=True)
    assert log.names[-1] == ("over" if method == "release" else "release") and log.names.count("over") == 1


def test_errors_after_a_failed_create_do_not_hide_it(make_tool, call):
    log = Log()

    async def create(tool, instance_id):
        log.append(("create",))
        raise ValueError("no room")

    async def release(tool, instance_id):
        log.append(("release",))
        raise KeyError(instance_id)

    with pytest.raises(ToolFailure, match="^tool mine: create raised ValueError: no room"):
        call(make_tool(**log.methods() | {"create": create, "release": release}))
    assert log.names == ["create", "release"]


def test_calls_next_to_one_that_failed_are_over_before_their_tool_is_released(make_tool, run_calls):
    log = Log()

    async def execute(tool, instance_id, parameters):
        if "wait" not in parameters:
            await asyncio.sleep(0.05)
            raise ValueError("broken")
        try:
            log.append(("begun",))
            await asyncio.sleep(60)
        finally:
            log.append(("over",))

    tool = make_tool(properties={"wait": {"type": "boolean"}}, **log.methods() | {"execute": execute})
    tool.places = asyncio.Semaphore(2)
    with pytest.raises(ToolFailure, match="broken"):
        run_calls({"mine": tool}, *(("mine", text) for text in ("{}", *['{"wait": true}'] * 2)), at_once=True)
    assert log.names[-1] == "release" and log.names.count("begun") == log.names.count("over") > 0


def test_time_queued_for_a_slot_is_shown(make_tool, run_calls):
    log = []

    async def execute(tool, instance_id, parameters):
        if not log:
            await asyncio.sleep(0.01)
            log.extend((wait.kind, wait.subject, wait.seconds) for wait in waits.longest() if "slot" in wait.subject)
        return ToolResponse("done"), 0.0, {}

    tool = make_tool(execute=execute)
    tool.places = asyncio.Semaphore(1)
    results = run_calls({"mine": tool}, *[("mine", "{}")] * 3, at_once=True)
    assert [result.kind for result in results] == ["ok"] * 3
    assert log == [("tool", "a slot at tool mine", None)] * 2


def test_a_tool_that_will_not_be_cancelled_is_left_behind(make_tool, open_session, caplog):
    leave = asyncio.Event()

    async def stubborn(tool, instance_id, parameters):
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                continue
        raise ValueError("too late")

    async def trajectory():
        session = open_session({"mine": make_tool(execute=stubborn)}, timeout=0.1)
        try:
            with pytest.raises(ToolFailure, match="did not end"):
                await session.call(ToolCall("mine", "{}"))
        finally:
            await session.close()
            leave.set()
        await asyncio.sleep(0.05)

    with caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(trajectory(), 60))
    assert not caplog.records


@pytest.mark.parametrize(("method", "before"), [("create", []), ("execute", ["create"])])
def test_cancelling_a_trajectory_ends_its_tools_and_releases_them_in_little_time(
    make_tool, open_session, monkeypatch, method, before
):
    monkeypatch.setattr(guarded, "CLOSING_S", 0.05)
    log, begun, ended = Log(), asyncio.Event(), []

    async def slow(tool, instance_id, *parameters):
        try:
            begun.set()
            await asyncio.sleep(600)
        finally:
            ended.append(True)

    async def hang(tool, instance_id):
        log.append(("release",))
        await asyncio.sleep(600)

    async def trajectory(session):
        try:
            await session.call(ToolCall("mine", "{}"))
        finally:
            await session.close()

    async def run():
        tool = make_tool(**log.methods() | {method: slow, "release": hang})
        task = asyncio.create_task(trajectory(open_session({"mine": tool}, timeout=600.0)))
        await begun.wait()
        task.cancel()
        await asyncio.wait({task}, timeout=60)
        assert task.done() and ended == [True] and log.names == [*before, "release"]

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_call_that_is_given_up_does_not_take_the_others_state(make_tool, open_session):
    log = Log()

    async def run():
        session = open_session({"mine": make_tool(**log.methods(pause=0.2))})
        first, second = [asyncio.create_task(session.call(ToolCall("mine", "{}"))) for _ in range(2)]
        await asyncio.sleep(0.05)
        first.cancel()
        assert (await second).kind == "ok"
        await session.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert log.names == ["create", "execute", "release"]


@pytest.mark.parametrize("method", ["create", "execute", "calc_reward", "release"])
def test_methods_that_are_no_coroutine_or_do_not_take_the_kwargs_of_the_row_are_named(make_tool, run_calls, method):
    async def narrow(tool, instance_id, *arguments):
        return "x", 0.0, {}

    def plain(tool, *arguments, **kwargs):
        return "x", 0.0, {}

    words = f"tools_kwargs.mine.{method}_kwargs of the row has answer, and the tool does not take them: got an unexp"
    for given, problem in ((narrow, re.escape(words)), (plain, rf"tool mine: {method} raised TypeError: .*async def")):
        tools = {"mine": make_tool(**Log().methods() | {method: given})}
        with pytest.raises(ToolFailure, match=problem):
            run_calls(tools, ("mine", "{}"), reward=True, mine={f"{method}_kwargs": {"answer": 3}})


def test_a_thousand_sessions_leave_nothing_behind(make_tool, open_session):
    log = Log()
    tool = make_tool(**log.methods())
    before = sys.getrefcount(tool)

    async def one():
        session = open_session({"mine": tool}, mine={"create_kwargs": None, "execute_kwargs": None})  # of a table
        await session.call(ToolCall("mine", "{}"))
        await session.close()

    async def run():
        await asyncio.gather(*(one() for _ in range(1000)))
        return len(asyncio.all_tasks())

    assert asyncio.run(run()) == 1
    assert log.names.count("create") == log.names.count("release") == 1000
    assert log[0] == ("create", "trajectory-1", {})
    assert sys.getrefcount(tool) <= before + 5
