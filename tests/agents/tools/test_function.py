"""`@function_tool`: the schema is the signature's, the call is the function's, and what cannot be a tool says why."""

import asyncio
import re
import threading
import time
from typing import Any, Literal, Optional

import pytest

from burnish.agents.tools import ToolError, ToolResponse, function_tool
from burnish.agents.tools.function import read_docstring
from burnish.errors import ConfigError, ToolFailure


def properties_of(function):
    return function_tool(function).tool_schema["function"]["parameters"]["properties"]


def test_the_schema_comes_from_signature_and_docstring():
    @function_tool
    def weather(city: str, days: int = 3, unit: Literal["c", "f"] | None = None) -> str:
        """Find the weather.

        Args:
            city: its name
            days: how many
        """
        return city

    assert weather.tool_schema == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Find the weather.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "its name"},
                    "days": {"type": "integer", "description": "how many", "default": 3},
                    "unit": {"type": "string", "enum": ["c", "f"], "nullable": True},
                },
                "required": ["city"],
            },
        },
    }
    again = function_tool(weather.function, name="other", description="In other words.").tool_schema["function"]
    assert (again["name"], again["description"]) == ("other", "In other words.")
    assert weather("Bonn") == "Bonn" and weather.__doc__.startswith("Find") and weather.name == "weather"


def test_every_supported_type():
    def take(
        a: str, b: int, c: float, d: bool, e: list, f: list[int], g: dict, h: dict[str, list[float]],
        i: Literal[1, 2], j: Literal["x", 1], k: Optional[str], o: int | None, m: list[str | None], *, n: "str" = "N",  # noqa: UP045
    ): ...  # fmt: skip

    assert properties_of(take) == {
        "a": {"type": "string"},
        "b": {"type": "integer"},
        "c": {"type": "number"},
        "d": {"type": "boolean"},
        "e": {"type": "array"},
        "f": {"type": "array", "items": {"type": "integer"}},
        "g": {"type": "object"},
        "h": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "number"}}},
        "i": {"type": "integer", "enum": [1, 2]},
        "j": {"type": ["string", "integer"], "enum": ["x", 1]},
        "k": {"type": "string", "nullable": True},
        "o": {"type": "integer", "nullable": True},
        "m": {"type": "array", "items": {"type": "string", "nullable": True}},
        "n": {"type": "string", "default": "N"},
    }

    def no_json(x: dict = threading, y: float = float("nan"), z: list = []): ...  # noqa: B006

    shown = {"x": {"type": "object"}, "y": {"type": "number"}, "z": {"type": "array", "default": []}}
    assert properties_of(no_json) == shown, "a default that is no JSON is not shown"


def no_type(x): ...
def any_type(x: Any): ...
def two_types(x: int | str): ...
def of_bytes(x: list[bytes]): ...
def by_number(x: dict[int, str]): ...
def bytes_choice(x: Literal[b"a"]): ...
def star(*args: int): ...
def by_place(x: int, /): ...
def unknown_name(x: "Nowhere"): ...  # noqa: F821
def no_type_at_all(x: [1, 2]): ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_type, "no_type: x has no type; annotate it, as in x: str"),
        (any_type, "any_type: x is of type Any, which has no JSON schema; use str, int"),
        (two_types, "two_types: x is of type int | str"),
        (of_bytes, "of_bytes: x is of type bytes"),
        (by_number, "by_number: x is of type dict[int, str]"),
        (bytes_choice, "bytes_choice: x is of type typing.Literal[b'a']"),
        (no_type_at_all, "no_type_at_all: x is of type [1, 2]"),
        (star, "star: *args: int has no names that a model could give; write out the parameters"),
        (by_place, "by_place: x can only be given by position, and a model gives names; remove the /"),
        (unknown_name, "unknown_name: its annotations cannot be read (name 'Nowhere' is not defined)"),
        (int, "<class 'int'> is not one; derive from BaseTool"),
    ],
)
def test_a_function_that_cannot_be_a_tool_says_why(function, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        function_tool(function)
    for observes in (("ValueError",), (KeyboardInterrupt,)):
        with pytest.raises(ConfigError, match="name classes of exceptions"):
            function_tool(no_type, observes=observes)


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("plain", "plain"), (ToolResponse("x"), "x"), (3, "3"), ({"é": [1, None]}, '{"é": [1, null]}'), (None, "null"),
        (object(), None), ({1, 2}, None), ([threading.Lock()], None),
    ],
)  # fmt: skip
def test_what_it_returns_is_reported(call, returned, text):
    @function_tool
    def mine():
        return returned

    if text is not None:
        result = call(mine)
        assert (result.text, result.kind, result.reward, result.metrics) == (text, "ok", 0.0, {})
    else:
        with pytest.raises(ToolFailure, match="execute raised TypeError: mine returned a .* neither text nor JSON"):
            call(mine)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (("x", 0.5), ("x", 0.5, {})), (({"a": 1}, -1, {"n": 2}), ('{"a": 1}', -1.0, {"n": 2.0})),
        ((ToolResponse("x"), None, None), ("x", 0.0, {})), ((1.5, 2.5), ("[1.5, 2.5]", 0.0, {})),
        (("x", float("nan")), "reward"), (("x", "y"), "a finite number as reward"), (("x", 1.0, 2), "metrics by name"),
    ],
)  # fmt: skip
def test_it_may_return_a_reward_and_metrics_too(call, returned, expected):
    @function_tool
    def mine():
        return returned

    if isinstance(expected, tuple):
        result = call(mine)
        assert (result.text, result.reward, result.metrics) == expected
    else:
        with pytest.raises(ToolFailure, match=expected):
            call(mine)


def test_an_async_function_runs_on_the_loop_and_a_plain_one_next_to_it(call):
    @function_tool
    async def on_loop(x: int):
        return threading.current_thread() is threading.main_thread()

    @function_tool
    def plain(x: int):
        return threading.current_thread() is threading.main_thread()

    @function_tool
    def lazily(x: int):
        return on_loop(x)

    assert (call(on_loop, x=1).text, call(plain, x=1).text, call(lazily, x=1).text) == ("true", "false", "true")


def test_many_functions_that_block_run_at_once(run_calls):
    together = threading.Barrier(128)

    @function_tool
    def meet():
        return together.wait(60)  # for the others, which would never come if calls ran one after the other

    results = run_calls({"meet": meet}, *[("meet", "{}")] * 128, at_once=True)
    assert {int(result.text) for result in results} == {*range(128)}


def test_exceptions_that_are_observed_are_reported_and_others_fail(call):
    errors = {"told": ValueError("no such city"), "empty": ValueError, "tool": ToolError("try again")}
    errors |= {"other": RuntimeError("broken"), "exit": SystemExit(3), "stop": StopIteration(1)}
    errors |= {"cancel": asyncio.CancelledError()}

    @function_tool(observes=(KeyError, ValueError))
    def mine(kind: str):
        raise errors[kind]

    assert (call(mine, kind="told").text, call(mine, kind="told").kind) == ("no such city", "error")
    assert call(mine, kind="empty").text == "ValueError"
    assert call(mine, kind="tool").text == "try again"
    with pytest.raises(ToolFailure, match=r"tool mine: execute raised RuntimeError: broken \(.*test_function.py, l"):
        call(mine, kind="other")
    for kind in ("exit", "stop", "cancel"):  # it cannot end the run
        with pytest.raises(ToolFailure, match="tool mine: execute raised"):
            call(mine, kind=kind)
    with pytest.raises(ToolFailure, match=r"tools_kwargs\.mine\.execute_kwargs has y, but a function takes"):
        call(mine, tools_kwargs={"execute_kwargs": {"y": 1}}, kind="told")


def test_a_function_that_hangs_is_left_behind(call):
    leave = threading.Event()

    @function_tool
    def hang():
        leave.wait(100)

    start = time.monotonic()
    with pytest.raises(ToolFailure, match="hang: execute did not end in 0.2 s"):
        call(hang, timeout=0.2)
    assert time.monotonic() - start < 60
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "tool hang"]
    assert thread.daemon, "the process would wait for it when it ends"
    leave.set()


GOOGLE = """Find the weather
    of a city.

    It asks a server. days: not here

    Args:
        city (str): its name,
            in English
        days (int, optional): how many
            `days` ahead

    Returns:
        str: city: the weather
    """
NUMPY = """
    Find the weather of a city.

    Parameters
    ----------
    city : str
        its name,
        in English
    days : int
        how many `days` ahead

    Returns
    -------
    str
        the weather
    """
REST = """Find the weather of a city.

    :param city: its name,
        in English
    :param int days: how many `days` ahead
    :returns: the weather
    """
PLAIN = """Find the weather of a city.

    city: its name, in English
    days: how many `days` ahead
    """
BULLETS = """Find the weather of a city.
    - `city`: its name, in English
    - days: how many `days` ahead
    """


WHOLE = ("Find the weather of a city.", {"city": "its name, in English", "days": "how many `days` ahead"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, WHOLE) for text in (GOOGLE, NUMPY, REST, PLAIN, BULLETS)),
        (None, ("", {})),
        ("", ("", {})),
        ("city: it is about", ("city: it is about", {})),
        ("Args:\n    city: where", ("", {"city": "where"})),
        ("Do it.\n\nArgs:\n    town: where\n    city: there", ("Do it.", {"city": "there"})),
        ("Do it.\n\nArgs:\n    city:\n", ("Do it.", {"city": ""})),
    ],
)
def test_description_and_parameters_are_read_and_missing_parts_not_invented(text, expected):
    assert read_docstring(text, ["city", "days"]) == expected
