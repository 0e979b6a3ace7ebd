"""A row's tests, in the forms that datasets write them, as typed values; and whose the names in them are. No torch.

Where a name of test programs comes from is decided from the tests alone, so that a solution cannot bring its own `set`,
`math` or `isclose` (`names_in`): built-in names, standard modules used as `sys.getsizeof(…)` and a few standard types
are Python's; every other name that the tests neither import nor define is the solution's. Where there is none, it is
the one built-in that they call (`assert sum(10, 15) == 6`); where they call several, none is taken.
"""

import ast
import builtins
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.rewards.contract import plain

CONTESTS = ("codecontests", "apps", "codeforces", "taco")
FORMS = (
    'a list of test programs (["assert f(1) == 2", …]), a list of {"input": …, "output": …} for standard input and '
    'output, or {"inputs": […], "outputs": […]}, with "fn_name" where a function is to be called, or '
    '{"assert_case": […]} with test programs'
)
_NOTHING: tuple[Any, ...] = (None, "", [], {})
#: What a test may have next to "fn_name"; the last three change nothing.
_KNOWN = {"input", "inputs", "output", "outputs", "fn_name", "type", "testtype", "explanation", "id", "index"}
_INPUT_KINDS, _CALL_KINDS = ("stdin", "stdin_stdout"), ("functional", "function_call")

_BUILT_IN = frozenset(dir(builtins))
_STANDARD = {
    **dict.fromkeys(("Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"), "collections"),
    **dict.fromkeys(("Any", "Callable", "Dict", "List", "Optional", "Set", "Tuple", "Union"), "typing"),
    "Decimal": "decimal",
    "Fraction": "fractions",
    "isclose": "math",
}
_USUAL_SHORT = {"np": "numpy", "pd": "pandas"}


@dataclass(frozen=True)
class Names:
    """`take` from the solution, `give` as [module, attribute or None], and `modules` that the tests import."""

    take: list[str]
    give: dict[str, tuple[str, str | None]]
    modules: list[str]


@dataclass(frozen=True)
class Programs:
    """Programs to be run after the solution; one passes where it raises nothing."""

    programs: tuple[str, ...]
    names: Names

    def __len__(self) -> int:
        return len(self.programs)


@dataclass(frozen=True)
class FunctionCalls:
    """Calls of one function, with what may come back (any of `expected[i]`)."""

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
    if "assert_case" in value:
        if others := [key for key, item in value.items() if key != "assert_case" and not _says_nothing(item)]:
            raise ValueError(f"{others[0]!r} next to 'assert_case': keep one of them")
        return _tests(_parsed(value["assert_case"]))
    function = _function(value)
    inputs, outputs = (value.get(name + "s", value.get(name)) for name in ("input", "output"))
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise ValueError("the object has no lists 'inputs' and 'outputs'")
    if len(inputs) != len(outputs) or not inputs:
        raise ValueError(f"{len(inputs)} inputs and {len(outputs)} outputs: needed is one output for each input")
    if function:
        return FunctionCalls(function, tuple(map(_arguments, inputs)), tuple(map(_expected, outputs)))
    return Pairs(tuple(("" if i is None else _lines(i), _lines(o)) for i, o in zip(inputs, outputs, strict=True)))


def _says_nothing(item: Any) -> bool:
    return item in _NOTHING or (isinstance(item, list) and all(one in _NOTHING for one in item))


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


def names_in(programs: Sequence[str]) -> Names:
    """SyntaxError where a program is not Python; ValueError where nothing in them can be the solution's."""
    read, called, bound, modules = set[str](), set[str](), set[str](), set[str]()
    bare = set[str]()  # read otherwise than as `name.attribute`
    defined = set[str]()  # by import, def or class: the test's own from its first use
    nodes = [node for program in programs for node in ast.walk(ast.parse(program))]
    bases = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
                if id(node) not in bases:
                    bare.add(name)
            case ast.Name(id=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                defined.add(name)
            case ast.Import(names=aliases):
                modules.update(alias.name for alias in aliases)
                defined.update((alias.asname or alias.name).partition(".")[0] for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases):
                modules.update({module} if module else ())
                defined.update(alias.asname or alias.name for alias in aliases)
            case ast.Call(func=ast.Name(id=name)):
                called.add(name)
    read = {name for name in read if not name.startswith("__")} - defined
    give: dict[str, tuple[str, str | None]] = {}
    for name in read - bound:
        module = _USUAL_SHORT.get(name, name)
        if name not in bare and (module in sys.stdlib_module_names or name in _USUAL_SHORT):
            give[name] = (module, None)
        elif name in _STANDARD:
            give[name] = (_STANDARD[name], name)
    take = read - give.keys() - _BUILT_IN
    if not take - bound:  # they are all Python's
        called &= read - bound
        take |= called - _BUILT_IN or (called if len(called) == 1 else set())
    if not take - bound:
        raise ValueError("they call nothing of the solution's")
    modules |= {module for module, _ in give.values()}
    return Names(sorted(take), {name: give[name] for name in sorted(give.keys() - take)}, sorted(modules))
