"""From what the user wrote to the type, choice and range of a key: forgiving where the meaning is plain ("4" for an
integer, one string for a list, 1e4 for 10000) and strict everywhere else. Complaints name key, value and choices."""

import types
import typing
from contextlib import suppress
from typing import Any

from burnish.config.key import Key, KnownKey
from burnish.config.nearest import nearest
from burnish.errors import ConfigError

NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
NAMES |= {list: "a list", dict: "a mapping"}
TRUTH = {"true": True, "false": False, "yes": True, "no": False, 1: True, 0: False}


class _Mismatch(Exception):
    """The value is not of the type; internal to this file."""


def convert(known: KnownKey, raw: Any) -> Any:
    about, kinds = known.about, _members(known.type)
    if raw is None:
        if known.default is None or type(None) in typing.get_args(known.type):
            return None
        for kind in (typing.get_origin(kind) or kind for kind in kinds):
            if kind in (list, dict):
                return kind()
        raise ConfigError(f"{known.name}=null: must be {allowed(known)}; leave it out for {show(known.default)}")
    if isinstance(raw, str | bool):
        raw = about.spellings.get(show(raw), raw)
    try:
        value = _cast(known.type, raw)
    except _Mismatch:
        raise ConfigError(f"{known.name}={show(raw)}: must be {allowed(known)}") from None
    # Choices bind strings; a number or truth value that is allowed with them has been checked by its type.
    for one in value if isinstance(value, list) else [value]:
        if about.options and isinstance(one, str) and one not in about.options:
            if one in about.refused:
                raise ConfigError(f"{known.name}={one} is not supported: {about.refused[one]}")
            near = nearest(one, map(str, about.options))
            hint = f"; did you mean {near}?" if near else ""
            raise ConfigError(f"{known.name}={show(value)}: must be {allowed(known)}{hint}")
    if isinstance(value, int | float) and not isinstance(value, bool) and not _fits(about, value):
        raise ConfigError(f"{known.name}={show(value)}: must be {allowed(known)}")
    return value


def _fits(about: Key, value: float) -> bool:
    return (
        value == value  # not NaN
        and (about.low is None or value >= about.low)
        and (about.above is None or value > about.above)
        and (about.high is None or value <= about.high)
    )


def show(value: Any) -> str:
    """A value as a user would type it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(show(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{show(item)}" for name, item in value.items()) + "}"
    return str(value)


def is_text(known: KnownKey) -> bool:
    """Whether a key holds text, or a list of it, and nothing else."""
    return all(kind in (str, list[str]) for kind in _members(known.type))


def allowed(known: KnownKey) -> str:
    """What a key takes, in words: its choices, or its type and range."""
    about = known.about
    bounds = (("at least", about.low), ("more than", about.above), ("at most", about.high))
    words = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
    limits = f" of {words}" if words else ""
    if about.options:
        options = [show(choice) for choice in about.options]
        options += [NAMES[kind] + limits for kind in _members(known.type) if kind in (int, float)]
        return "one of " + ", ".join(options)
    return " or ".join(_name(kind) for kind in _members(known.type)) + limits


def _members(hint: Any) -> list[Any]:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return [hint]


def _name(kind: Any) -> str:
    if kind is Any:
        return "a value"
    if typing.get_origin(kind) is list:
        (item,) = typing.get_args(kind)
        return "a list" if item is Any else f"{_name(item)} or a list of them"
    return NAMES[typing.get_origin(kind) or kind]


def _cast(hint: Any, raw: Any) -> Any:
    *others, last = _members(hint)
    for kind in others:
        with suppress(_Mismatch):
            return _cast_one(kind, raw)
    return _cast_one(last, raw)


def _cast_one(kind: Any, raw: Any) -> Any:
    """`raw` as `kind`, or _Mismatch."""
    if kind is Any:
        return raw
    origin = typing.get_origin(kind) or kind
    if origin is list:
        (item,) = typing.get_args(kind)
        return [_cast(item, value) for value in (raw if isinstance(raw, list | tuple) else [raw])]
    if origin is bool:
        raw = raw.lower() if isinstance(raw, str) else raw
        if isinstance(raw, str | int) and raw in TRUTH:
            return TRUTH[raw]
    elif origin is dict:
        if isinstance(raw, dict):
            return raw
    elif isinstance(raw, int | float | str) and not isinstance(raw, bool):
        if origin is str:
            return str(raw)
        try:
            number = float(raw)
        except ValueError:
            raise _Mismatch from None
        if origin is float:
            return number
        if number.is_integer():
            return raw if isinstance(raw, int) else int(number)
    raise _Mismatch
