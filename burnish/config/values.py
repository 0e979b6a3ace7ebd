"""From what the user wrote to the type, choice and range of a key; complaints name key, value and what is allowed.

Hydra and YAML hand over plain ints, floats, strings, bools, lists and dicts. `convert(known, raw)` gives the value the
dataclass holds, or raises `ConfigError`. It is forgiving where the meaning is plain ("4" for an integer, one string for
a list of strings, 1e4 for 10000) and strict everywhere else (nothing is ever rounded or cut).
"""

import re
import types
import typing
from typing import Any

from burnish.config.key import Key, KnownKey
from burnish.errors import ConfigError

IMPORT_PATH = re.compile(r"^[\w./~-]+:[A-Za-z_]\w*$")  # package.module:name or file.py:name
NAMES = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "a mapping",
}
TRUTH = {"true": True, "false": False, "yes": True, "no": False, 1: True, 0: False}


class _Mismatch(Exception):
    """The value is not of the type; internal to this file."""


def convert(known: KnownKey, raw: Any) -> Any:
    """The value of a key as its dataclass holds it."""
    if raw is None:
        return _null(known)
    if isinstance(raw, str | bool):
        raw = known.about.spellings.get(show(raw), raw)
    try:
        value = _cast(known.type, raw)
    except _Mismatch:
        raise ConfigError(f"{known.name}={show(raw)}: must be {allowed(known)}") from None
    _check_choice(known, value)
    _check_range(known, value)
    return value


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
    if about.options:
        options = [show(choice) for choice in about.options]
        options += [NAMES[kind] for kind in _members(known.type) if kind in (int, float)]
        options += ["your own as package.module:name"] if about.import_path else []
        return "one of " + ", ".join(options)
    kinds = " or ".join(_name(kind) for kind in _members(known.type))
    return f"{kinds}{_range(about)}"


def _null(known: KnownKey) -> Any:
    kinds = _members(known.type)
    if known.default is None or type(None) in typing.get_args(known.type):
        return None
    for kind in kinds:
        if (typing.get_origin(kind) or kind) in (list, dict):
            return (typing.get_origin(kind) or kind)()
    raise ConfigError(f"{known.name}=null: must be {allowed(known)}; leave it out for {show(known.default)}")


def _members(hint: Any) -> list[Any]:
    """The types a value may have, without None."""
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


def _range(about: Key) -> str:
    words = []
    if about.low is not None:
        words.append(f"at least {about.low:g}")
    if about.above is not None:
        words.append(f"more than {about.above:g}")
    if about.high is not None:
        words.append(f"at most {about.high:g}")
    return " of " + " and ".join(words) if words else ""


def _cast(hint: Any, raw: Any) -> Any:
    members = _members(hint)
    if len(members) > 1:
        for kind in members:
            try:
                return _cast(kind, raw)
            except _Mismatch:
                continue
        raise _Mismatch
    (kind,) = members
    if kind is Any:
        return raw
    if typing.get_origin(kind) is list:
        (item,) = typing.get_args(kind)
        return [_cast(item, value) for value in (raw if isinstance(raw, list | tuple) else [raw])]
    return _CASTS[typing.get_origin(kind) or kind](raw)


def _to_bool(raw: Any) -> bool:
    raw = raw.lower() if isinstance(raw, str) else raw
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str | int) and raw in TRUTH:
        return TRUTH[raw]
    raise _Mismatch


def _to_int(raw: Any) -> int:
    number = _to_float(raw)
    if not number.is_integer():
        raise _Mismatch
    return raw if isinstance(raw, int) else int(number)


def _to_float(raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise _Mismatch
    try:
        return float(raw)
    except ValueError:
        raise _Mismatch from None


def _to_str(raw: Any) -> str:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise _Mismatch
    return str(raw)


def _to_dict(raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise _Mismatch
    return raw


_CASTS = {bool: _to_bool, int: _to_int, float: _to_float, str: _to_str, dict: _to_dict}


def _check_choice(known: KnownKey, value: Any) -> None:
    """Choices bind strings; a number or truth value beside them has been checked by its type."""
    about = known.about
    if not about.options or not isinstance(value, str) or value in about.options:
        return
    if about.import_path and IMPORT_PATH.match(value):
        return
    if value in about.refused:
        raise ConfigError(f"{known.name}={value} is not supported: {about.refused[value]}")
    raise ConfigError(f"{known.name}={value}: must be {allowed(known)}")


def _check_range(known: KnownKey, value: Any) -> None:
    about = known.about
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    fits = (
        value == value  # not NaN
        and (about.low is None or value >= about.low)
        and (about.above is None or value > about.above)
        and (about.high is None or value <= about.high)
    )
    if not fits:
        raise ConfigError(f"{known.name}={show(value)}: must be {allowed(known)}")
