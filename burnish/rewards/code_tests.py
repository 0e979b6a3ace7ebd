"""The tests of a row, in the forms that datasets write them, as typed values.

`read_tests(ground_truth, extra_info)` takes `test_cases` of extra_info (which is also where `reward_model.test_cases`
arrives) where the row has it, else the ground truth; either as JSON text or as parsed values. ValueError, naming the
field and the forms, where there are none or they cannot be read. No torch.
"""

import ast
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from burnish.rewards.code_names import Names, names_in
from burnish.rewards.contract import plain

FORMS = (
    'a list of test programs (["assert f(1) == 2", …]), a list of {"input": …, "output": …} for standard input and '
    'output, or {"inputs": […], "outputs": […]}, with "fn_name" where a function is to be called'
)
_NOTHING: tuple[Any, ...] = (None, "", [], {})
#: What a test may have next to "fn_name"; the last three change nothing.
_KNOWN = {"input", "inputs", "output", "outputs", "fn_name", "type", "testtype", "explanation", "id", "index"}
_INPUT_KINDS, _CALL_KINDS = ("stdin", "stdin_stdout"), ("functional", "function_call")


@dataclass(frozen=True)
class Programs:
    """Programs to be run after the solution; one passes where it raises nothing."""

    programs: tuple[str, ...]
    names: Names

    def __len__(self) -> int:
        return len(self.programs)


@dataclass(frozen=True)
class FunctionCalls:
    """FunctionCalls of one function, with what may come back (any of `expected[i]`)."""

    function: str
    arguments: tuple[list[Any], ...]
    expected: tuple[list[Any], ...]

    def __len__(self) -> int:
        return len(self.arguments)


@dataclass(frozen=True)
class Pairs:
    """(standard input, what the solution is to write)"""

    pairs: tuple[tuple[str, str], ...]

    def __len__(self) -> int:
        return len(self.pairs)


Tests = Programs | FunctionCalls | Pairs


def read_tests(ground_truth: Any, extra_info: Mapping[str, Any] | None) -> Tests:
    """The tests of a row."""
    name, value = "test_cases", plain((extra_info or {}).get("test_cases"))
    if value in _NOTHING:
        name, value = "reward_model.ground_truth", plain(ground_truth)
    if value in _NOTHING:
        raise ValueError(
            "there are no tests in reward_model.ground_truth, reward_model.test_cases or extra_info.test_cases; "
            f"code needs {FORMS}"
        )
    try:
        return _tests(_parsed(value))
    except (ValueError, SyntaxError) as error:
        shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
        raise ValueError(f"{name}={shown}: {error}; code needs {FORMS}") from None


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        parsed = json.loads(value)
    except ValueError:
        return [value]  # assert lines as they are
    return _parsed(parsed) if isinstance(parsed, str) else parsed


def _tests(value: Any) -> Tests:
    if isinstance(value, dict):
        return _columns(value)
    if not isinstance(value, list) or not value:
        raise ValueError("an empty list" if value == [] else f"{type(value).__name__} is none of the forms of tests")
    if all(isinstance(item, str) for item in value):
        for i, program in enumerate(value):
            if not any(isinstance(node, ast.Assert | ast.Call | ast.Raise) for node in ast.walk(ast.parse(program))):
                raise ValueError(f"test {i + 1} checks nothing: {program[:60]!r}")
        return Programs(tuple(value), names_in(value))
    if all(isinstance(item, dict) and item.keys() >= {"input", "output"} for item in value):
        functions = set(map(_function, value))
        if len(functions) > 1:
            raise ValueError(f"its items call different functions, or none: {', '.join(sorted(map(str, functions)))}")
        inputs, outputs = ([item[name] for item in value] for name in ("input", "output"))
        return _columns({"fn_name": functions.pop(), "inputs": inputs, "outputs": outputs})
    raise ValueError("its items are neither all strings nor all objects with input and output")


def _function(given: dict[str, Any]) -> str | None:
    """What `given` calls; None: standard input and output. ValueError where it says something that is not known here,
    for it may change what the test means."""
    said = {key: value for key, value in given.items() if value not in _NOTHING}
    unknown = sorted(said.keys() - _KNOWN)
    if unknown:
        raise ValueError(f"the key {unknown[0]!r} is not known next to input, output and fn_name; leave it out")
    function = said.get("fn_name")
    if function is not None and not isinstance(function, str):
        raise ValueError(f"fn_name={function!r} is no name")
    kind = said.get("type", said.get("testtype"))
    if kind is not None and kind not in (_CALL_KINDS if function else _INPUT_KINDS):
        raise ValueError(f"type {kind!r} {'with' if function else 'without'} fn_name is not known")
    return function


def _columns(value: dict[str, Any]) -> Tests:
    function = _function(value)
    inputs, outputs = (value.get(name + "s", value.get(name)) for name in ("input", "output"))
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise ValueError("the object has no lists 'inputs' and 'outputs'")
    if len(inputs) != len(outputs) or not inputs:
        raise ValueError(f"{len(inputs)} inputs and {len(outputs)} outputs: needed is one output for each input")
    if function:
        return FunctionCalls(function, tuple(map(_arguments, inputs)), tuple(map(_expected, outputs)))
    return Pairs(tuple((_lines(i), _lines(o)) for i, o in zip(inputs, outputs, strict=True)))


def _lines(value: Any) -> str:
    """Text for standard input or output; some datasets write it as a list of lines."""
    if isinstance(value, list):
        return "\n".join(map(str, value))
    return value if isinstance(value, str) else str(value)


def _arguments(value: Any) -> list[Any]:
    """Arguments of a call: a list of them, or text with one per line, each as JSON."""
    if isinstance(value, list):
        return value
    if not isinstance(value, str):
        return [value]
    try:
        return [json.loads(line) for line in value.splitlines() if line.strip()]
    except ValueError:
        raise ValueError(f"the arguments {value[:60]!r} are not JSON, one per line") from None


def _expected(value: Any) -> list[Any]:
    """What a call may return: the value, what it says as JSON, and of a list of one thing that thing."""
    values = [value]
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            values.append(json.loads(value))
    return values + [item[0] for item in values if isinstance(item, list) and len(item) == 1]
