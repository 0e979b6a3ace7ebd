"""The solution as the tester sees it: data is data, everything else a handle on an object in the candidate's process.

A handle can be called, iterated, indexed, measured, printed, asked for attributes and compared or combined with another
handle; each of these asks the candidate. It never equals data, is never ordered against data, and no arithmetic takes
it and data: else the solution would be shown the expected value and decide the comparison itself. `in` looks at the
items one by one, for the same reason. Of an instance of a class of the solution's that is itself a data type
(`class LRUCache(OrderedDict)`), the plain value is fetched, and compared here. Runs inside the sandbox.
"""

from __future__ import annotations

from burnish.sandbox.harness.wire import Gone, HarnessPeer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ALONE = ("len", "iter", "next", "bool", "str", "repr", "getitem", "setitem", "delitem", "enter", "exit")
WITH_ANOTHER = (
    "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or",
    "xor",
)  # fmt: skip
FACTS = ("__name__", "__qualname__", "__module__", "__dict__", "__annotations__")  # attributes that may be asked for
#: Exceptions that would end a loop of the test's quietly, as if there were nothing more to check.
ENDS_LOOPS = (StopIteration, StopAsyncIteration, GeneratorExit)


class Solution(HarnessPeer):
    """The candidate's process, asked by the tester. `gone`: it is no more, or speaks nonsense."""

    def __init__(self, incoming: int, outgoing: int):
        super().__init__(incoming, outgoing)
        self.gone = False
        self._handles: dict[int, Handle] = {}
        self._exceptions: dict[int, type[BaseException]] = {}
        self._callbacks: list[Any] = []

    def names(self, names: list[str]) -> dict[str, Any]:
        """Those of its names that the solution defines."""
        (forms,) = self.ask("names", *names)
        return {name: self.decode(forms[name]) for name in names if name in forms}

    def call(self, function: Handle | str, *arguments: Any, **keywords: Any) -> Any:
        """Call a handle, or do one of the candidate's OPERATIONS; arguments that it changes are changed here too."""
        called = function if isinstance(function, str) else self.encode(function)
        named = {name: self.encode(value) for name, value in keywords.items()}
        try:
            result, changes = self.ask("call", called, self.encode_all(arguments), named)
        except ENDS_LOOPS as error:
            if function == "next":
                raise
            raise RuntimeError(f"the solution raised {type(error).__name__}") from None
        for key, form in changes:
            refresh(arguments[key] if isinstance(key, int) else keywords[key], self.decode(form))
        return self.decode(result)

    def ask(self, *request: Any) -> list[Any]:
        try:
            return super().ask(*request)
        except Gone:
            self.gone = True
            raise

    def perform(self, operation: str, *parts: Any) -> list[Any]:
        number, arguments, keywords = parts
        named = {name: self.decode(form) for name, form in keywords.items()}
        return [self.encode(self._callbacks[number](*self.decode_all(arguments), **named))]

    def reference(self, value: Any) -> Any:
        if type(value) is Handle:
            return ["object", _of(value, "number")]
        if not callable(value) or isinstance(value, type):
            raise TypeError(f"a test cannot hand a {type(value).__name__} to the solution")
        self._callbacks.append(value)
        return ["callback", len(self._callbacks) - 1]

    def resolve(self, tag: str, parts: list[Any]) -> Any:
        if tag == "callback":
            return self._callbacks[parts[0]]
        if tag == "exception":
            return self.exception_class(parts[0])
        number, is_data = int(parts[0]), parts[1] is True
        return self._handles.setdefault(number, Handle(self, number, is_data))

    def exception_class(self, form: Any) -> type[BaseException]:
        if isinstance(form, str):
            return super().exception_class(form)
        number, name, bases = form
        if number not in self._exceptions and bases:
            self._exceptions[number] = type(name, tuple(map(self.exception_class, bases)), {})
        return self._exceptions[number]


class Handle:
    """An object of the solution's that is no data."""

    __slots__ = ("__is_data", "__number", "__solution")

    def __init__(self, solution: Solution, number: int, is_data: bool):
        for name, value in (("solution", solution), ("number", number), ("is_data", is_data)):
            object.__setattr__(self, f"_Handle__{name}", value)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return _of(self, "solution").call(self, *arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in FACTS:
            raise AttributeError(name)  # protocols, such as numpy's, by which an object says where its memory is
        return _of(self, "solution").call("getattr", self, name)

    def __instancecheck__(self, instance: Any) -> Any:
        return type(instance) is Handle and _of(self, "solution").call("isinstance", instance, self)

    def __eq__(self, other: Any) -> Any:
        if type(other) is Handle:
            return _of(self, "solution").call("eq", self, other)
        if not _of(self, "is_data"):
            return NotImplemented
        value = _of(self, "solution").call("value", self)
        return NotImplemented if type(value) is Handle else value == other

    def __ne__(self, other: Any) -> Any:
        return _of(self, "solution").call("ne", self, other) if type(other) is Handle else not self == other

    def __hash__(self) -> int:
        number: int = _of(self, "number")
        return number

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an object of the solution's cannot be copied")


def _of(handle: Handle, name: str) -> Any:
    """What a handle is made of, past its own `__getattr__`."""
    return object.__getattribute__(handle, f"_Handle__{name}")


def _alone(operation: str) -> Callable[..., Any]:
    return lambda self, *arguments: _of(self, "solution").call(operation, self, *arguments)


def _with_another(operation: str) -> Callable[..., Any]:
    def method(self: Handle, other: Any) -> Any:
        return _of(self, "solution").call(operation, self, other) if type(other) is Handle else NotImplemented

    return method


for _operation in (*ALONE, "setattr", "delattr"):
    setattr(Handle, f"__{_operation}__", _alone(_operation))
for _operation in WITH_ANOTHER:
    setattr(Handle, f"__{_operation}__", _with_another(_operation))


def refresh(old: Any, new: Any) -> None:
    """Give a container the content of another of its kind, keeping the containers inside where they have not moved."""
    if type(old) is not type(new):
        return
    if isinstance(old, dict):
        kept = {key: _kept(old[key], value) if key in old else value for key, value in new.items()}
        old.clear()
        old.update(kept)
    elif isinstance(old, list):
        old[:] = [_kept(old[i], value) if i < len(old) else value for i, value in enumerate(new)]
    elif isinstance(old, bytearray) or hasattr(old, "dtype"):
        old[:] = new
    elif hasattr(old, "clear"):  # sets and deques
        old.clear()
        getattr(old, "update" if isinstance(old, set) else "extend")(new)
    elif isinstance(old, tuple):
        for one, other in zip(old, new):  # noqa: B905
            refresh(one, other)


def _kept(old: Any, new: Any) -> Any:
    if type(old) is not type(new) or not isinstance(old, (list, dict, set, bytearray)):
        return new
    refresh(old, new)
    return old
