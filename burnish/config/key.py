"""One key: its default, and everything the rest of the package needs to know about it.

A configuration class is a dataclass whose fields are made with `key(...)` or `section(...)` (a nested class); what is
said about a key is kept in the field's metadata. The annotation of a key is its type after `finalise`: a key whose
default is None may be left out, even where its annotation is a plain `int`.
"""

import copy
import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import Any

METADATA = "burnish"


@dataclass(frozen=True)
class Key:
    """What is known about one key besides its type and default."""

    doc: str
    reader: str = ""  # the file in `burnish/` that reads it, which a test checks; none: `later` or `inert`
    choices: tuple[Any, ...] | str = ()  # the values allowed, or the table that has them, as package.module:name
    import_path: bool = False  # it may name a user's own code, as package.module:name
    refused: Mapping[str, str] = field(default_factory=dict)  # values known from elsewhere: why they are no choice here
    low: float | None = None  # bounds of a number: at least,
    above: float | None = None  # more than,
    high: float | None = None  # at most
    # A capability that this version lacks: every value but the default and those in `now` is refused with it; or of
    # some values, each with its own words. `instead` is what to use in its place.
    later: str | Mapping[Any, str] | None = None
    now: tuple[Any, ...] = ()
    instead: str = ""
    inert: str | None = None  # why it has no effect in this version; setting it is accepted and reported once
    spellings: Mapping[str, str] = field(default_factory=dict)  # other ways to write a value: {"bf16": "bfloat16"}
    path: bool = False  # a file or folder: a leading `~` is expanded

    @property
    def options(self) -> tuple[Any, ...]:
        """The values allowed; empty: any of the type."""
        if not isinstance(self.choices, str):
            return self.choices
        module, _, name = self.choices.partition(":")
        return tuple(getattr(import_module(module), name))


@dataclass(frozen=True)
class KnownKey:
    """A key in its place in a tree: dotted name, type, default and `Key`."""

    name: str
    type: Any
    default: Any
    about: Key


@dataclass(frozen=True)
class Section:
    """What `section` leaves in the metadata: words that hold for every key below it."""

    later: str | None = None
    readers: Mapping[str, str] = field(default_factory=dict)


class Keys:
    """Base of configuration classes: `class DataConfig(Keys, reader=…)` names the file that reads the keys which name
    none, but for those that nothing reads. Users' code may also read a key by `config["lr"]` and `config.get("lr")`."""

    def __init_subclass__(cls, reader: str = "") -> None:
        for name in cls.__annotations__:
            about = cls.__dict__[name].metadata[METADATA]
            if isinstance(about, Key) and not (about.reader or about.inert or isinstance(about.later, str)):
                cls.__dict__[name].metadata = {METADATA: dataclasses.replace(about, reader=reader)}

    def get(self, name: str, default: Any = None) -> Any:
        return vars(self).get(name, default)

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def __contains__(self, name: object) -> bool:
        return name in vars(self)


def key(default: Any, doc: str, reader: str = "", **about: Any) -> Any:
    """A dataclass field for one key; `about` is what `Key` has."""
    metadata = {METADATA: Key(doc, reader, **about)}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def section(cls: type, *, readers: Mapping[str, str] | None = None, later: str | None = None, **defaults: Any) -> Any:
    """A dataclass field for a nested configuration class. `readers` says who reads some of its keys here, for a class
    that is used in several places ("*": the rest); `later` holds for all of them; `defaults` replace some."""
    metadata = {METADATA: Section(later, readers or {})}
    return field(default_factory=lambda: cls(**defaults), metadata=metadata)


def keys_of(root: Any) -> dict[str, KnownKey]:
    """Every key of a configuration class by its dotted name, in the order of the fields."""
    return _table(root)


@cache  # apart from `keys_of`: mypy does not take a class for something that can be hashed
def _table(root: Any) -> dict[str, KnownKey]:
    return {known.name: known for known in _walk(root(), "", Section())}


def _walk(node: Any, prefix: str, around: Section) -> Iterator[KnownKey]:
    hints = typing.get_type_hints(type(node))
    for item in fields(node):
        about, value, name = item.metadata[METADATA], getattr(node, item.name), prefix + item.name
        later = about.later or around.later
        if is_dataclass(value):
            yield from _walk(value, name + ".", Section(later, about.readers))
        else:
            reader = around.readers.get(item.name) or (about.reader and around.readers.get("*")) or about.reader
            yield KnownKey(name, hints[item.name], value, dataclasses.replace(about, reader=reader, later=later))


def read(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


def write(config: Any, name: str, value: Any) -> None:
    *parents, last = name.split(".")
    setattr(read(config, ".".join(parents)) if parents else config, last, value)
