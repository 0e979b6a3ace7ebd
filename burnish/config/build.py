"""From the sparse, nested mapping that Hydra composed to a configuration, the keys that were set, and notices: other
spellings are rewritten, unsupported, unknown and unavailable keys refused, values converted. All mistakes of one kind
are reported together."""

import copy
import dataclasses
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from burnish.config.aliases import Rewrite, leaves_alone, why_unsupported
from burnish.config.command import RESOLVED, Flags
from burnish.config.key import KnownKey, keys_of, read, write
from burnish.config.nearest import nearest
from burnish.config.values import convert, show
from burnish.errors import ConfigError, NotAvailable

log = logging.getLogger(__name__)

Config = TypeVar("Config", bound=Any)
NO_EFFECT = "no effect: "
TARGET, NO_TARGET = "_target_", "the sections of burnish have their classes"
OFF = "they are off, and burnish has none of it"


@dataclass
class Loaded(Generic[Config]):
    """One job: its configuration, the keys that a user or recipe set (as they were set), notices for the user, flags.
    `given` stays as it is while the configuration is finished, so that it reproduces the job: it is what recipe.yaml of
    a run holds."""

    config: Config
    given: dict[str, Any]
    notices: list[str] = field(default_factory=list)
    flags: Flags = field(default_factory=Flags)

    @property
    def explicit(self) -> frozenset[str]:
        return frozenset(self.given)

    def log_notices(self) -> None:
        """Print what was renamed, switched on, planned, or has no effect."""
        idle = [notice.removeprefix(NO_EFFECT) for notice in self.notices if notice.startswith(NO_EFFECT)]
        for notice in self.notices:
            if not notice.startswith(NO_EFFECT):
                log.info("%s", notice)
        if idle:  # one line, however many keys a recipe lists
            log.info("%s%s", NO_EFFECT, "; ".join(idle))


def build(
    given: Mapping[str, Any],
    root: Callable[[], Config],
    aliases: Mapping[str, str | Rewrite],
    typed: frozenset[str] = frozenset(),
) -> Loaded[Config]:
    """Make a `root` from the keys in `given`; `typed` names those that came from the command line and win."""
    known = keys_of(root)
    flat = flatten(given, [*known, *aliases])
    flat, notices = rewrite_aliases(flat, aliases, typed)
    reasons: dict[str, list[str]] = defaultdict(list)  # why keys have no effect
    for name in [name for name in flat if name not in known]:
        if name.endswith(f".{TARGET}"):
            reasons[NO_TARGET].append(name)
            del flat[name]
        elif (reason := why_unsupported(name)) and leaves_alone(name, flat[name]):
            reasons[OFF if not flat[name] else reason].append(name)
            del flat[name]
    if problems := [complaint(name, known) for name in flat if name not in known]:
        raise ConfigError("\n".join(problems))
    values = convert_all(resolve(flat, known), known)
    refuse_unavailable(values, known)
    for name, about in known.items():
        if name in values and about.about.inert:
            reasons[about.about.inert].append(name)
    notices += [f"{NO_EFFECT}{', '.join(names)} ({reason})" for reason, names in reasons.items()]
    config = root()
    for name, value in values.items():
        write(config, name, copy.deepcopy(value))
    return Loaded(config, values, notices)


def flatten(given: Mapping[str, Any], known: Collection[str], prefix: str = "") -> dict[str, Any]:
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
        if value is None and alias in flat:  # an old spelling that is left empty beside the new one
            continue
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


def complaint(name: str, known: Mapping[str, KnownKey]) -> str:
    """Why a key that is not in the tree cannot be set."""
    if reason := why_unsupported(name):
        return f"key {name!r} is not supported: {reason}"
    if inside := [other for other in known if other.startswith(name + ".")]:
        return f"{name!r} is a section, not a key; its keys are {', '.join(inside[:5])}"
    if owner := next((other for other in known if name.startswith(other + ".")), None):
        return f"{owner!r} is a key, not a section: there is no {name!r}"
    suggestion = nearest(name, known)
    return f"unknown key {name!r}" + (f"; did you mean {suggestion!r}?" if suggestion else "")


def resolve(flat: Mapping[str, Any], known: Mapping[str, KnownKey]) -> dict[str, Any]:
    """Fill in `${other.key}`; keys that were not set stand there with their defaults."""
    if not any("${" in str(value) for value in flat.values()):
        return dict(flat)
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    full = _nested({name: about.default for name, about in known.items()} | dict(flat))
    try:
        return {
            name: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            for name, value in ((name, OmegaConf.select(full, name, throw_on_missing=True)) for name in flat)
        }
    except OmegaConfBaseException as error:
        raise ConfigError(f"a ${{...}} in the configuration cannot be filled in: {error}") from error


def convert_all(flat: Mapping[str, Any], known: Mapping[str, KnownKey]) -> dict[str, Any]:
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
        about, what = known[name].about, known[name].about.later
        if isinstance(what, Mapping):
            what = what.get(value) if isinstance(value, str) else None
        elif value == known[name].default or value in about.now:
            what = None
        if what:
            asked[what].append(f"{name}={show(value)}")
            instead[what] = about.instead
    for what, keys in asked.items():
        raise NotAvailable(f"{what} (asked for by {', '.join(keys)})", instead[what])


def explain(config: Any, explicit: frozenset[str] = frozenset()) -> str:
    """What differs from the defaults, a line per key. A key left null or auto and filled in since is still at its
    default; one that another key changed is marked, and one without effect is left out."""
    changed = {
        name: (read(config, name), name in explicit)
        for name, known in keys_of(type(config)).items()
        if read(config, name) != known.default
        and (name in explicit or known.default not in (None, "auto"))
        and not known.about.inert
    }
    width = max((len(name) for name in changed), default=0)
    return "\n".join(
        f"{name:<{width}}  {show(value)}{'' if was_set else '  (follows from other keys)'}"
        for name, (value, was_set) in changed.items()
    )


def to_yaml(config: Any) -> str:
    """Every key with its value. For reading, not for running again: it does not show which keys were set. The first
    line states this; `command.py` refuses a recipe that begins with it."""
    from omegaconf import OmegaConf

    return f"{RESOLVED}\n{OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(config)))}"


def to_recipe(given: Mapping[str, Any]) -> str:
    """The keys that were set, by dotted name, as a recipe: it reproduces the run, and takes overrides."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(_nested(given))


def _nested(flat: Mapping[str, Any]) -> Any:
    from omegaconf import OmegaConf

    tree = OmegaConf.create({})
    for name, value in flat.items():
        OmegaConf.update(tree, name, value, force_add=True)
    return tree
