"""The pipe between the tester and the candidate, and values on it as JSON: data is copied, all else is a reference.

A message is one line of JSON: a request `[operation, …]`, or the reply to the last one, `["ok", …]` or `["error",
class, arguments]`. Both ends run in one thread, so requests nest: while the tester waits for a call of the solution,
the solution may call a function that the test handed over.

A value is sent as it is, or as a list that starts with a tag: `["list", 1, 2]`, `["dict", key, value, …]`. Of a
subclass of a data type only the value of that base goes over, so that an overridden `__eq__` stays behind. Nothing that
is decoded can run code: both sides make values of the fixed set of types in `KINDS`.

Runs inside the sandbox, on Python 3.8 or later, with the standard library alone. `typing` is not imported: it would add
several milliseconds to every program.
"""

from __future__ import annotations

import builtins
import importlib
import json
from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import IO, Any

SMALL = 2**53  # integers up to here are read alike by every JSON reader


class Gone(BaseException):
    """The other end has closed the pipe. No test catches this by `except Exception`."""


class HarnessPeer:
    """One end of the pipe. `ask` sends a request and gives what comes back; a subclass performs the other end's
    requests, and says what becomes of values that are no data."""

    def __init__(self, incoming: int, outgoing: int):
        self._incoming: IO[str] = open(incoming, encoding="ascii")  # noqa: SIM115  (open as long as the process lives)
        self._outgoing: IO[str] = open(outgoing, "w", encoding="ascii")  # noqa: SIM115

    def perform(self, operation: str, *parts: Any) -> list[Any]:
        """What to reply to a request; whatever it raises becomes an error reply."""
        raise NotImplementedError

    def send(self, message: Any) -> None:
        text = json.dumps(message)
        try:
            self._outgoing.write(text + "\n")
            self._outgoing.flush()
        except OSError:
            raise Gone from None

    def receive(self) -> list[Any]:
        line = self._incoming.readline()
        if not line.endswith("\n"):
            raise Gone
        message: list[Any] = json.loads(line)
        return message

    def ask(self, *request: Any) -> list[Any]:
        self.send(request)
        while True:
            message = self.receive()
            if message[0] == "ok":
                return message[1:]
            if message[0] == "error":
                raise self._raised(message[1], message[2])
            self.answer(message)

    def answer(self, request: list[Any]) -> None:
        try:
            self.send(["ok", *self.perform(*request)])
        except Gone:
            raise
        except BaseException as error:  # noqa: BLE001  whatever the other end's request raises is its answer
            self.send(["error", self.exception_form(type(error)), self._arguments(error)])

    def exception_form(self, kind: type[BaseException]) -> Any:
        """How a class of exceptions is sent to the other end: as the nearest built-in one."""
        return next(base.__name__ for base in kind.__mro__ if base.__module__ == "builtins")

    def exception_class(self, form: Any) -> type[BaseException]:
        kind = getattr(builtins, form)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ValueError(f"{form} is no exception")
        return kind

    def _arguments(self, error: BaseException) -> list[Any]:
        try:
            forms = self.encode_all(error.args)
            json.dumps(forms)
            return forms
        except Exception as unsendable:  # noqa: BLE001  the error itself has to get across
            return [f"(arguments lost: {type(unsendable).__name__})"]

    def _raised(self, form: Any, arguments: list[Any]) -> BaseException:
        kind, values = self.exception_class(form), self.decode_all(arguments)
        try:
            return kind(*values)
        except TypeError:  # a class that insists on other arguments
            return RuntimeError(f"{kind.__name__}: {values}")

    def reference(self, value: Any) -> Any:
        """The form of a value that is no data."""
        raise NotImplementedError

    def resolve(self, tag: str, parts: list[Any]) -> Any:
        """The value of a form that `reference` of the other side gave."""
        raise NotImplementedError

    def encode(self, value: Any) -> Any:
        kind: Any = type(value)
        if value is None or kind is bool or kind is str or kind is float:
            return value
        if kind is int and -SMALL < value < SMALL:
            return value
        if kind is type and value.__module__ == "builtins" and hasattr(builtins, value.__name__):
            return ["type", value.__name__]
        for base in kind.__mro__:
            if is_data_type(base):
                form = KINDS[_name(base)][0](self, value)
                if form is not None:
                    return form
        return self.reference(value)

    def encode_all(self, values: Iterable[Any]) -> list[Any]:
        return [self.encode(value) for value in values]

    def decode(self, form: Any) -> Any:
        if type(form) is not list:
            return form
        tag, parts = form[0], form[1:]
        if tag in KINDS:
            return KINDS[tag][1](self, parts)
        return self.resolve(tag, parts)

    def decode_all(self, forms: Iterable[Any]) -> list[Any]:
        return [self.decode(form) for form in forms]


def is_data_type(kind: type) -> bool:
    """Whether values of exactly this type are data; of a subclass, they are worth what they are as this."""
    return _name(kind) in KINDS and kind is not type


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _standard(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _flat(wire: HarnessPeer, value: dict[Any, Any]) -> list[Any]:
    return wire.encode_all(part for item in dict.items(value) for part in item)


def _pairs(wire: HarnessPeer, forms: list[Any]) -> list[tuple[Any, Any]]:
    values = wire.decode_all(forms)
    return list(zip(values[::2], values[1::2]))  # noqa: B905  (`strict` is younger than some servers' Python)


def _pack_tuple(wire: HarnessPeer, value: tuple[Any, ...]) -> list[Any]:
    items, fields = wire.encode_all(tuple.__iter__(value)), getattr(type(value), "_fields", None)
    return ["tuple", *items] if fields is None else ["namedtuple", type(value).__name__, list(fields), *items]


def _unpack_namedtuple(wire: HarnessPeer, parts: list[Any]) -> Any:
    name, fields, *items = parts
    return namedtuple(name, fields)(*wire.decode_all(items))  # namedtuple takes nothing but identifiers


def _pack_factory(wire: HarnessPeer, value: Any) -> list[Any]:
    known = type(value.default_factory) is type and value.default_factory.__module__ == "builtins"
    return ["collections.defaultdict", value.default_factory.__name__ if known else None, *_flat(wire, value)]


def _unpack_factory(wire: HarnessPeer, parts: list[Any]) -> Any:
    factory = None if parts[0] is None else _type(parts[0])
    return _standard("collections.defaultdict")(factory, _pairs(wire, parts[1:]))


def _pack_array(wire: HarnessPeer, value: Any) -> list[Any] | None:
    plain = value.dtype.kind in "biufc"
    return ["numpy.ndarray", value.dtype.str, wire.encode(value.tolist())] if plain else None


def _unpack_array(wire: HarnessPeer, parts: list[Any]) -> Any:
    if parts[0][1] not in "biufc":
        raise ValueError("not an array of numbers")
    return _standard("numpy.array")(wire.decode(parts[1]), dtype=parts[0])


def _type(name: str) -> Any:
    found = getattr(builtins, name)
    if not isinstance(found, type):
        raise ValueError(name + " is no type")
    return found


def _items(base: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Of a built-in collection: its items, whatever a subclass says about iteration."""
    tag = base.__name__
    return lambda wire, value: [tag, *wire.encode_all(base.__iter__(value))], lambda w, parts: base(w.decode_all(parts))


def _mapping(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Of a dict of the standard library: its items, in their order."""
    return lambda wire, value: [name, *_flat(wire, value)], lambda w, parts: _standard(name)(dict(_pairs(w, parts)))


def _by_text(name: str, write: str, read: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Of a standard type that a text describes in full."""
    return (
        lambda wire, value: [name, getattr(_standard(name), write)(value)],
        lambda wire, parts: getattr(_standard(name), read)(parts[0]) if read else _standard(name)(parts[0]),
    )


#: Type (built-in, or module and name) → (value to form, parts of a form to value).
KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "int": (lambda w, v: ["int", hex(int.__int__(v))], lambda w, p: int(p[0], 16)),
    "float": (lambda w, v: float.__float__(v), lambda w, p: p[0]),
    "str": (lambda w, v: str.__str__(v), lambda w, p: p[0]),
    "complex": (lambda w, v: ["complex", v.real, v.imag], lambda w, p: complex(*p)),
    "bytes": (lambda w, v: ["bytes", bytes.hex(v)], lambda w, p: bytes.fromhex(p[0])),
    "bytearray": (lambda w, v: ["bytearray", bytearray.hex(v)], lambda w, p: bytearray.fromhex(p[0])),
    "list": _items(list),
    "set": _items(set),
    "frozenset": _items(frozenset),
    "tuple": (_pack_tuple, lambda w, p: tuple(w.decode_all(p))),
    "namedtuple": (lambda w, v: None, _unpack_namedtuple),
    "dict": (lambda w, v: ["dict", *_flat(w, v)], lambda w, p: dict(_pairs(w, p))),
    "range": (lambda w, v: ["range", *w.encode_all((v.start, v.stop, v.step))], lambda w, p: range(*w.decode_all(p))),
    "slice": (lambda w, v: ["slice", *w.encode_all((v.start, v.stop, v.step))], lambda w, p: slice(*w.decode_all(p))),
    "collections.deque": (
        lambda w, v: ["collections.deque", v.maxlen, *w.encode_all(v)],
        lambda w, p: _standard("collections.deque")(w.decode_all(p[1:]), p[0]),
    ),
    "collections.OrderedDict": _mapping("collections.OrderedDict"),
    "collections.Counter": _mapping("collections.Counter"),
    "collections.defaultdict": (_pack_factory, _unpack_factory),
    "decimal.Decimal": _by_text("decimal.Decimal", "__str__", ""),
    "fractions.Fraction": _by_text("fractions.Fraction", "__str__", ""),
    "datetime.datetime": _by_text("datetime.datetime", "isoformat", "fromisoformat"),
    "datetime.date": _by_text("datetime.date", "isoformat", "fromisoformat"),
    "datetime.time": _by_text("datetime.time", "isoformat", "fromisoformat"),
    "datetime.timedelta": (
        lambda w, v: ["datetime.timedelta", v.days, v.seconds, v.microseconds],
        lambda w, p: _standard("datetime.timedelta")(*p),
    ),
    "numpy.generic": (lambda w, v: w.encode(v.item()), lambda w, p: p[0]),
    "numpy.ndarray": (_pack_array, _unpack_array),
    "type": (lambda w, v: None, lambda w, p: _type(p[0])),
}
