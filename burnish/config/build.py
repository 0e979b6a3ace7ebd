"""From the keys that were set to configuration objects.

`build(given, root, ...)` takes the sparse, nested mapping that Hydra composed from recipe and command line. It rewrites
other spellings, refuses what is unsupported or unknown, converts every value, refuses what is not available yet, and
produces a plain dataclass tree with the keys that were set and notices for the user. All mistakes of one kind
are reported together.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from burnish.config.aliases import Rewrite
from burnish.config.key import KnownKey, keys_of, write
from burnish.config.nearest import nearest
from burnish.config.unsupported import why_unsupported
from burnish.config.values import convert, show
from burnish.errors import ConfigError, NotAvailable

Config = TypeVar("Config")


@dataclass
class Built(Generic[Config]):
    """A configuration, the keys that were set in it with their values, and notices for the user."""

    config: Config
    given: dict[str, Any]
    notices: list[str]

    @property
    def explicit(self) -> frozenset[str]:
        """The names of the keys that were set."""
        return frozenset(self.given)


def build(
    given: Mapping[str, Any],
    root: Callable[[], Config],
    aliases: Mapping[str, str | Rewrite],
    typed: frozenset[str] = frozenset(),
) -> Built[Config]:
    """Make a `root` from the keys in `given`; `typed` names those that came from the command line and win."""
    known = keys_of(root)
    flat = flatten(given, known)
    flat, notices = rewrite_aliases(flat, aliases, typed)
    refuse_unknown(flat, known)
    values = convert_all(resolve(flat, known), known)
    refuse_unavailable(values, known)
    notices += describe_inert(frozenset(values), known)
    config = root()
    for name, value in values.items():
        write(config, name, copy.deepcopy(value))
    return Built(config, values, notices)


def flatten(given: Mapping[str, Any], known: Mapping[str, KnownKey], prefix: str = "") -> dict[str, Any]:
    """Nested sections to dotted names; what lies below a known key is its value, and a section of null sets nothing."""
    flat: dict[str, Any] = {}
    for part, value in given.items():
        name = f"{prefix}{part}"
        if isinstance(value, Mapping) and name not in known:
            flat |= flatten(value, known, name + ".")
        elif value is not None or not any(other.startswith(name + ".") for other in known):
            flat[name] = value
    return flat


def rewrite_aliases(
    flat: Mapping[str, Any], aliases: Mapping[str, str | Rewrite], typed: frozenset[str]
) -> tuple[dict[str, Any], list[str]]:
    """Other spellings to our keys. Where both were set, the command line wins over the recipe; a tie must agree."""
    rewritten = {name: value for name, value in flat.items() if name not in aliases}
    came_from = {name: name for name in rewritten}
    notices = []
    for name in (name for name in flat if name in aliases):
        alias, value = aliases[name], flat[name]
        for target, new in ({alias: value} if isinstance(alias, str) else alias(value, flat)).items():
            other = came_from.get(target)
            if other is not None and _is_typed(other, typed) and not _is_typed(name, typed):
                continue
            if other is not None and _is_typed(other, typed) == _is_typed(name, typed) and rewritten[target] != new:
                raise ConfigError(
                    f"{other}={show(flat[other])} and {name}={show(value)} are two spellings of {target} "
                    "with different values; keep one"
                )
            rewritten[target], came_from[target] = new, name
            if target != name:
                notices.append(f"{name} is read as {target}={show(new)}")
    return rewritten, notices


def _is_typed(name: str, typed: frozenset[str]) -> bool:
    """Whether a key, or the section it was set with, came from the command line."""
    return any(name == other or name.startswith(other + ".") for other in typed)


def refuse_unknown(names: Mapping[str, Any], known: Mapping[str, KnownKey]) -> None:
    """Unsupported keys with their reason, unknown ones with the nearest known."""
    problems = [complaint(name, known) for name in names if name not in known]
    if problems:
        raise ConfigError("\n".join(problems))


def complaint(name: str, known: Mapping[str, KnownKey]) -> str:
    """Why a key that is not in the tree cannot be set."""
    if reason := why_unsupported(name):
        return f"key {name!r} is not supported: {reason}"
    inside = [other for other in known if other.startswith(name + ".")]
    if inside:
        return f"{name!r} is a section, not a key; its keys are {', '.join(other for other in inside[:5])}"
    owner = next((other for other in known if name.startswith(other + ".")), None)
    if owner is not None:
        return f"{owner!r} is a key, not a section: there is no {name!r}"
    suggestion = nearest(name, known)
    return f"unknown key {name!r}" + (f"; did you mean {suggestion!r}?" if suggestion else "")


def resolve(flat: Mapping[str, Any], known: Mapping[str, KnownKey]) -> dict[str, Any]:
    """Fill in `${other.key}`; keys that were not set stand there with their defaults."""
    if not any("${" in str(value) for value in flat.values()):
        return dict(flat)
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    full = OmegaConf.create({})
    for name, value in ({other: about.default for other, about in known.items()} | dict(flat)).items():
        OmegaConf.update(full, name, value, force_add=True)
    try:
        return {
            name: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            for name, value in ((name, OmegaConf.select(full, name, throw_on_missing=True)) for name in flat)
        }
    except OmegaConfBaseException as error:
        raise ConfigError(f"a ${{...}} in the configuration cannot be filled in: {error}") from error


def convert_all(flat: Mapping[str, Any], known: Mapping[str, KnownKey]) -> dict[str, Any]:
    """Every value in the type of its key."""
    values, problems = {}, []
    for name, raw in flat.items():
        if raw == "???":
            problems.append(f"{name} must be set: the recipe leaves it open (???)")
            continue
        try:
            values[name] = convert(known[name], raw)
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    return values


def refuse_unavailable(values: Mapping[str, Any], known: Mapping[str, KnownKey]) -> None:
    """Name the first missing capability, with all the keys that ask for it."""
    asked: dict[str, list[str]] = defaultdict(list)
    instead: dict[str, str] = {}
    for name, value in values.items():
        if what := missing_capability(known[name], value):
            asked[what].append(f"{name}={show(value)}")
            instead[what] = known[name].about.instead
    for what, keys in asked.items():
        raise NotAvailable(f"{what} (asked for by {', '.join(keys)})", instead[what])


def missing_capability(known: KnownKey, value: Any) -> str | None:
    """The capability that a value asks for and this version lacks."""
    later = known.about.later
    if isinstance(later, Mapping):
        return later.get(value) if isinstance(value, str) else None
    return None if later is None or value == known.default or value in known.about.now else later


def describe_inert(explicit: frozenset[str], known: Mapping[str, KnownKey]) -> list[str]:
    """One line per reason, with the keys that have no effect for it."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, about in known.items():
        if name in explicit and about.about.inert:
            reasons[about.about.inert].append(name)
    return [f"no effect: {', '.join(names)} ({reason})" for reason, names in reasons.items()]
