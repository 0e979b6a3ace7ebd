"""One trajectory's tools: calls with checked arguments and a time limit, and the state they keep in between.

A tool's state is created at its first call (others at the same time wait for it) and released by `close`, which the
owner always awaits. The model is shown its own mistakes (unknown tool, bad arguments, a ToolError). A mistake of the
tool (it raises, takes too long, or breaks the contract) is a `ToolFailure` that names tool and method.
"""

import asyncio
import functools
import inspect
import math
import reprlib
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from burnish.agents.guarded import awaited, closing_limit, finite, within
from burnish.agents.parsers import ToolCall
from burnish.agents.tools.base import BaseTool, ToolError, ToolResponse
from burnish.agents.tools.schema import BadArguments, read_arguments
from burnish.errors import DataError, ToolFailure
from burnish.user_code import listed, nearest
from burnish.waits import waiting

Kind = Literal["ok", "unknown_tool", "bad_arguments", "error"]
Method = Literal["create", "execute", "calc_reward", "release"]
_KWARGS = ("create_kwargs", "execute_kwargs", "calc_reward_kwargs", "release_kwargs")


@dataclass(frozen=True)
class ToolResult:
    name: str
    text: str  # the model's observation
    kind: Kind
    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class ToolSession:
    """`tools_kwargs` is the row's: by tool `{create_kwargs, execute_kwargs, calc_reward_kwargs, release_kwargs}`.
    `timeout` is in seconds for each call of a tool's method; None waits for as long as it takes."""

    def __init__(
        self, tools: Mapping[str, BaseTool], instance_id: str, tools_kwargs: Mapping[str, Any], timeout: float | None
    ):
        self._tools, self._instance_id, self._timeout = tools, instance_id, timeout
        self._kwargs = {name: _checked_kwargs(name, kwargs) for name, kwargs in tools_kwargs.items()}
        self._creating: dict[str, asyncio.Task[Any]] = {}
        self._running: set[asyncio.Task[Any]] = set()

    async def call(self, call: ToolCall) -> ToolResult:
        """Run one call. `close` ends it, where nobody else did."""
        task = asyncio.ensure_future(self._run(call))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await task

    async def _run(self, call: ToolCall) -> ToolResult:
        start = time.monotonic()

        def result(text: str, kind: Kind, reward: float = 0.0, metrics: dict[str, float] | None = None) -> ToolResult:
            return ToolResult(call.name, text, kind, reward, metrics or {}, time.monotonic() - start)

        if call.name not in self._tools:
            there = f"the tools are {listed(self._tools)}" if self._tools else "there are no tools"
            near = nearest(call.name[:100], self._tools)
            return result(f"there is no tool {call.name!r:.100}; {there}{near}", "unknown_tool")
        try:
            parameters = read_arguments(call.arguments, self._tools[call.name].tool_schema)
        except BadArguments as error:
            return result(str(error), "bad_arguments")
        if call.name not in self._creating:
            self._creating[call.name] = asyncio.ensure_future(self._within_limits(call.name, "create"))
        await asyncio.shield(self._creating[call.name])  # one caller's end is not that of the others
        try:
            async with AsyncExitStack() as place:
                if (places := self._tools[call.name].places) is not None:
                    # Without a limit: those before it have the limit of their calls.
                    with waiting("tool", "", f"a slot at tool {call.name}", None):
                        await place.enter_async_context(places)
                returned = await self._within_limits(call.name, "execute", parameters)
        except ToolError as error:
            return result(str(error), "error")
        text, reward, metrics = returned
        return result(text, "ok", reward, metrics)

    async def trajectory_reward(self) -> float:
        return math.fsum([await self._within_limits(name, "calc_reward") for name in self._created()])

    async def close(self) -> None:
        """End the calls that still run, and release what was created, all of it before a failure is raised; nothing at
        a second call. A `create` that failed may have left something too: what goes wrong in releasing that is not
        raised, because it follows from the failure that was."""
        self._timeout = closing_limit(self._timeout)
        unfinished = [task for task in (*self._running, *self._creating.values()) if not task.done()]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        created, begun, self._creating = self._created(), list(self._creating), {}
        ended = await asyncio.gather(*(self._within_limits(name, "release") for name in begun), return_exceptions=True)
        pairs = zip(begun, ended, strict=True)
        failures = [failure for name, failure in pairs if name in created and isinstance(failure, BaseException)]
        if failures:
            raise ToolFailure("; ".join(map(str, failures))) from failures[0]

    def _created(self) -> list[str]:
        ended = [(name, task) for name, task in self._creating.items() if task.done() and not task.cancelled()]
        return [name for name, task in ended if task.exception() is None]

    async def _within_limits(self, name: str, method: Method, *arguments: Any) -> Any:
        """What the tool's method returns; ToolFailure for all that goes wrong except the ToolError of a call."""
        kwargs = self._kwargs.get(name, {}).get(f"{method}_kwargs", {})
        function = getattr(self._tools[name], method)
        try:
            if kwargs:
                inspect.signature(function).bind(self._instance_id, *arguments, **kwargs)
        except TypeError as error:
            about = f"tools_kwargs.{name}.{method}_kwargs of the row has {listed(kwargs)}"
            raise ToolFailure(f"{about}, and the tool does not take them: {error}") from error
        call = functools.partial(function, self._instance_id, *arguments, **kwargs)
        observed = (ToolError,) if method == "execute" else ()
        return await within(self._timeout, f"tool {name}: {method}", _read(method, call), observed)


async def _read(method: Method, call: Callable[[], Any]) -> Any:
    """Reading an answer may raise too, if it is strange enough, so it belongs to the call."""
    try:
        answer = await awaited(call)
        return _answer(answer) if method == "execute" else _number(answer) if method == "calc_reward" else None
    except ToolError as error:
        raise ToolError(str(error) or "the tool refused without a reason") from error


def _answer(returned: Any) -> tuple[str, float, dict[str, float]]:
    """Text, reward and metrics. None is no reward and no metrics; metrics that are no numbers are left out."""
    if not isinstance(returned, tuple | list) or len(returned) != 3:
        raise _broke_contract(returned, "a (ToolResponse, reward, metrics) triple")
    response, reward, metrics = returned
    text = response.text if isinstance(response, ToolResponse) else response
    if not isinstance(text, str):
        raise _broke_contract(response, "text or a ToolResponse with text")
    metrics = {} if metrics is None else metrics
    if not isinstance(metrics, Mapping) or not all(isinstance(name, str) for name in metrics):
        raise _broke_contract(metrics, "metrics by name")
    values = {name: finite(int(value) if isinstance(value, bool) else value) for name, value in metrics.items()}
    numbers = {name: value for name, value in values.items() if value is not None}
    return text, 0.0 if reward is None else _number(reward), numbers


def _number(reward: Any) -> float:
    number = finite(reward)
    if number is None:
        raise _broke_contract(reward, "a finite number as reward")
    return number


def _broke_contract(returned: Any, expected: str) -> ToolFailure:
    return ToolFailure(f"it returned {reprlib.repr(returned)} ({type(returned).__name__}), not {expected}")


def _checked_kwargs(name: str, kwargs: Any) -> dict[str, dict[str, Any]]:
    """None, as tables have it for rows without a value, is nothing given."""
    if not isinstance(kwargs, Mapping | None):
        raise DataError(f"tools_kwargs.{name}={kwargs!r:.100}: it must hold {', '.join(_KWARGS)}, or some of them")
    for key, value in (kwargs or {}).items():
        if key not in _KWARGS:
            raise DataError(
                f"tools_kwargs.{name}.{key}: a tool is given {', '.join(_KWARGS)}{nearest(str(key), _KWARGS)}"
            )
        if not isinstance(value, Mapping | None) or not all(isinstance(inner, str) for inner in value or ()):
            raise DataError(f"tools_kwargs.{name}.{key}={value!r:.100}: it must hold values by name")
    return {key: dict(value) for key, value in (kwargs or {}).items() if value is not None}
