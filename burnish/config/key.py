"""One key: its default, and everything the rest of the package needs to know about it.

A configuration class is a dataclass whose fields are made with `key(...)` (a value) or `section(...)` (a nested class).
What is said here about a key (documentation, reader, choices, range, availability) is kept in the field's metadata and
nowhere else; `keys_of(root)` walks a tree and hands out the flat table `dotted name -> KnownKey` that building,
explaining and testing read.

The annotation of a key is its type after `finalise`. A key whose default is None may be left out, even where its
annotation is a plain `int`: finalise fills it.
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
    reader: str = ""
    choices: tuple[Any, ...] | str = ()
    import_path: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
    low: float | None = None
    above: float | None = None
    high: float | None = None
    later: str | Mapping[Any, str] | None = None
    now: tuple[Any, ...] = ()
    instead: str = ""
    inert: str | None = None
    spellings: Mapping[str, str] = field(default_factory=dict)
    path: bool = False

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
    inert: str | None = None
    readers: Mapping[str, str] = field(default_factory=dict)


def key(
    default: Any,
    doc: str,
    *,
    reader: str = "",
    choices: tuple[Any, ...] | str = (),
    import_path: bool = False,
    refused: Mapping[str, str] | None = None,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    later: str | Mapping[Any, str] | None = None,
    now: tuple[Any, ...] = (),
    instead: str = "",
    inert: str | None = None,
    spellings: Mapping[str, str] | None = None,
    path: bool = False,
) -> Any:
    """A dataclass field for one key.

    reader       the file that reads the key, relative to `burnish/`; a test checks that it does. A key that nothing
                 reads has none: it is `later` or `inert`
    choices      the values allowed, or the table that has them, as package.module:name; with `import_path`, also a
                 user's own as `package.module:name`
    refused      values that users know from elsewhere, each with the reason why it is no choice here
    low, above, high   bounds of a number: at least, more than, at most
    later        names a capability that this version lacks. As a string: every value but the default (and those in
                 `now`) is refused with it. As a mapping: the values named in it are refused, each with its own words
    instead      what to use in its place, said with the refusal
    inert        why the key has no effect in this version; setting it is accepted and said once
    spellings    other ways to write a value, e.g. {"bf16": "bfloat16"}
    path         a file or folder: a leading `~` is expanded
    """
    about = Key(
        doc=doc,
        reader=reader,
        choices=choices,
        import_path=import_path,
        refused=refused or {},
        low=low,
        above=above,
        high=high,
        later=later,
        now=now,
        instead=instead,
        inert=inert,
        spellings=spellings or {},
        path=path,
    )
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.deepcopy(default), metadata={METADATA: about})
    return field(default=default, metadata={METADATA: about})


def section(
    cls: type,
    *,
    later: str | None = None,
    inert: str | None = None,
    readers: Mapping[str, str] | None = None,
    **defaults: Any,
) -> Any:
    """A dataclass field for a nested configuration class.

    later, inert   hold for every key below it
    readers        who reads some of its keys here, for a class that is used in several places; "*" stands for the rest
    defaults       replace some of its defaults here
    """
    about = Section(later, inert, readers or {})
    return field(default_factory=lambda: cls(**defaults), metadata={METADATA: about})


def keys_of(root: Any) -> dict[str, KnownKey]:
    """Every key of a configuration class by its dotted name, in the order of the fields."""
    return _table(root)


@cache
def _table(root: Any) -> dict[str, KnownKey]:
    return {known.name: known for known in _walk(root(), "", Section())}


def _walk(node: Any, prefix: str, around: Section) -> Iterator[KnownKey]:
    hints = typing.get_type_hints(type(node))
    for item in fields(node):
        about, value, name = item.metadata[METADATA], getattr(node, item.name), prefix + item.name
        if is_dataclass(value):
            inside = Section(about.later or around.later, about.inert or around.inert, about.readers)
            yield from _walk(value, name + ".", inside)
        else:
            yield KnownKey(name, hints[item.name], value, _placed(item.name, about, around))


def _placed(name: str, about: Key, around: Section) -> Key:
    """What the section around a key adds to it."""
    reader = around.readers.get(name) or (about.reader and around.readers.get("*")) or about.reader
    return dataclasses.replace(
        about, reader=reader, later=about.later or around.later, inert=about.inert or around.inert
    )


def read(config: Any, name: str) -> Any:
    """The value at a dotted name."""
    for part in name.split("."):
        config = getattr(config, part)
    return config


def write(config: Any, name: str, value: Any) -> None:
    """Set the value at a dotted name."""
    *parents, last = name.split(".")
    setattr(read(config, ".".join(parents)) if parents else config, last, value)
