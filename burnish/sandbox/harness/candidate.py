"""The candidate's process: runs the solution and lets the tester use what it defines.

Forked before the tester has read anything, so that there is nothing here to find out: no test, no expected value, no
nonce, no way to standard output. What it answers is the solution's own claim, not trusted. Runs inside the sandbox.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib
import operator
import os
import sys

from burnish.sandbox.harness.wire import KINDS, Gone, HarnessPeer, is_data_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS
CAPABILITIES_VERSION = 0x20080522
NAME = "solution"
#: Where a name is looked up, in this order; the modules themselves are names too.
MODULES = (
    "typing", "collections", "math", "itertools", "functools", "heapq", "bisect", "string", "re", "operator", "random",
    "copy", "sys",
)  # fmt: skip

#: What the tester may do with an object that stays here, besides calling it.
OPERATIONS: dict[str, Callable[..., Any]] = {
    "getattr": getattr, "setattr": setattr, "delattr": delattr, "isinstance": isinstance,
    "len": len, "iter": iter, "next": next, "bool": bool, "str": str, "repr": repr,
    "getitem": operator.getitem, "setitem": operator.setitem, "delitem": operator.delitem,
    "value": lambda value: value,  # of a subclass of a data type: what it is worth as that
    "enter": lambda manager: manager.__enter__(), "exit": lambda manager, *error: manager.__exit__(*error),
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "pow": operator.pow, "matmul": operator.matmul,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor,
}  # fmt: skip


def run(requests: int, replies: int) -> NoReturn:
    """Say whether all is ready, then serve the tester until it goes away."""
    candidate = Candidate(requests, replies)
    try:
        try:
            _let_go(*sorted((requests, replies)))
        except OSError as error:
            candidate.send(["broken", str(error)])
            os._exit(1)
        candidate.send(["ready"])
        while True:
            candidate.answer(candidate.receive())
    except Gone:
        os._exit(0)


def _let_go(low: int, high: int) -> None:
    """Keep no file but the two pipes, and no privilege, such as that to look into another process."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.closerange(3, low)
    os.closerange(low + 1, high)
    os.closerange(high + 1, 65536)
    libc = ctypes.CDLL(None, use_errno=True)
    header, none = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.capset(header, none):
        raise OSError(ctypes.get_errno(), "the candidate's process cannot drop its privileges")


class Candidate(HarnessPeer):
    """The solution's names and objects, by number where they are no data."""

    def __init__(self, incoming: int, outgoing: int):
        super().__init__(incoming, outgoing)
        self._names: dict[str, Any] = {}
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}  # by id; `_objects` keeps them alive

    def perform(self, operation: str, *parts: Any) -> list[Any]:
        if operation == "load":
            return self._load(*parts)
        if operation == "names":
            return [{name: self.encode(self._names[name]) for name in parts if name in self._names}]
        return self._call(*parts)

    def _load(self, source: str, with_usual_names: bool) -> list[Any]:
        module = type(sys)(NAME)
        sys.modules[NAME] = module  # dataclasses and others look their class's module up
        self._names = module.__dict__
        if with_usual_names:
            self._names.update(usual_names(source))
        exec(compile(source, NAME, "exec", dont_inherit=True), self._names)
        return []

    def _call(self, function: Any, arguments: list[Any], keywords: dict[str, Any]) -> list[Any]:
        """[what it returns, the arguments that are not what they were]"""
        called = OPERATIONS[function] if isinstance(function, str) else self.decode(function)
        given = dict(enumerate(self.decode_all(arguments)))
        named = {name: self.decode(form) for name, form in keywords.items()}
        result = called(*given.values(), **named)
        made = isinstance(function, list) and isinstance(called, type) and not is_data_type(type(result))
        form = self.reference(result) if made else self.encode(result)  # an instance of its class keeps its methods
        pairs = [*zip(given.items(), arguments), *zip(named.items(), keywords.values())]  # noqa: B905
        data = [(key, value, before) for (key, value), before in pairs if type(before) is list and before[0] in KINDS]
        after = [(key, self.encode(value), before) for key, value, before in data]
        return [form, [[key, now] for key, now, before in after if now != before]]

    def reference(self, value: Any) -> Any:
        if type(value) is Callback:
            return ["callback", value.number]
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["exception", self.exception_form(value)]
        return ["object", self._number(value), any(map(is_data_type, type(value).__mro__))]

    def resolve(self, tag: str, parts: list[Any]) -> Any:
        return Callback(self, parts[0]) if tag == "callback" else self._objects[parts[0]]

    def exception_form(self, kind: type[BaseException]) -> Any:
        """A class of the solution's own goes along with its bases, so that tests can catch it by name."""
        if kind.__module__ == "builtins":
            return kind.__name__
        bases = [self.exception_form(base) for base in kind.__bases__ if issubclass(base, BaseException)]
        return [self._number(kind), kind.__name__, bases]

    def _number(self, value: Any) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]


def usual_names(source: str) -> dict[str, Any]:
    """Names that solutions to call tests use without importing them (`List`, `deque`, `math`), as the judges of such
    tasks allow: those that `source` reads and never binds."""
    import ast  # needed here alone, and not small

    used: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    found: dict[str, Any] = {}
    for name in used - bound - set(dir(builtins)):
        if name in MODULES:
            found[name] = importlib.import_module(name)
            continue
        for module in map(importlib.import_module, MODULES):
            if name in getattr(module, "__all__", dir(module)) and not name.startswith("_"):
                found[name] = getattr(module, name)
                break
    return found


class Callback:
    """A function of the test's, which the solution may call and nothing else."""

    def __init__(self, candidate: Candidate, number: int):
        self._candidate = candidate
        self.number = number

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        encode = self._candidate.encode
        named = {name: encode(value) for name, value in keywords.items()}
        (form,) = self._candidate.ask("callback", self.number, self._candidate.encode_all(arguments), named)
        return self._candidate.decode(form)
