"""The contract of a health rule, and the table of all of them.

A rule names the metrics it watches; after each step it looks at their `History` and returns a `Finding` or None. It
keeps no state of its own: the same history gives the same finding, live or from a folder.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from burnish.errors import ConfigError
from burnish.health.history import History

NOTE, WARNING, BROKEN = SEVERITIES = ("note", "warning", "broken")  # "broken": training on is of no use


@dataclass(frozen=True)
class Finding:
    severity: str
    evidence: str  # one sentence, with numbers
    remedy: str  # in the words of the keys
    samples: int = 0  # of the newest rollouts, shown with it

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ConfigError(f"a finding of severity {self.severity!r}: there are {', '.join(SEVERITIES)}")


Check = Callable[[History], Finding | None]


@dataclass(frozen=True)
class Rule:
    name: str
    symptom: str  # as the reader of a log would say it; a heading of docs/troubleshooting.md
    meaning: str  # what it does to training
    watches: tuple[str, ...]  # names of metrics; one that ends in "/" is all that begin so
    check: Check


REGISTERED: dict[str, Rule] = {}


def register_rule(name: str, *, watches: tuple[str, ...], symptom: str, meaning: str = "") -> Callable[[Check], Check]:
    """Decorator for a rule of yours: a function of the history that returns a `Finding` or None."""
    if name in built_in():
        raise ConfigError(f"register_rule({name!r}): burnish has a rule of this name")

    def add(check: Check) -> Check:
        REGISTERED[name] = Rule(name, symptom, meaning, tuple(watches), check)
        return check

    return add


@cache
def built_in() -> dict[str, Rule]:
    """Each module of `rules` holds one `RULE`, or several `RULES`."""
    from burnish.health import rules

    found: dict[str, Rule] = {}
    for module in sorted(one.name for one in iter_modules(rules.__path__)):
        loaded = import_module(f"{rules.__name__}.{module}")
        found |= {rule.name: rule for rule in loaded.RULES}
    return found


def all_rules() -> dict[str, Rule]:
    return built_in() | REGISTERED
