"""Rules between keys, one subject per file: each fills derived defaults, changes the configuration in place, says what
it decided through `given.say`, and raises `ConfigError` with the keys, their values and the remedy."""

from dataclasses import dataclass, field
from typing import Any

from burnish.config.needs import Needs


def fill(section: Any, **values: Any) -> None:
    """Give keys that were left open, which are None, these values."""
    for name, value in values.items():
        if getattr(section, name) is None:
            setattr(section, name, value)


def at_default(section: Any, name: str) -> bool:
    """Whether a key has its default, which a recipe that lists every key sets too: it asks for nothing, so it may give
    way to another key. Not for lists, mappings, or defaults that differ by section."""
    return bool(getattr(section, name) == getattr(type(section), name))


@dataclass
class Given:
    """The keys that a user or recipe set, the algorithm's needs, and the notices of the rules for the user."""

    explicit: frozenset[str] = frozenset()
    needs: Needs = field(default_factory=Needs)
    notices: list[str] = field(default_factory=list)

    def __contains__(self, name: str) -> bool:
        return name in self.explicit

    def say(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)

    def unused(self, reason: str, *names: str) -> None:
        if there := [name for name in names if name in self]:
            self.say(f"unused: {', '.join(there)} ({reason})")

    def no_effect(self, reason: str, *names: str) -> None:
        if names:
            self.say(f"no effect: {', '.join(names)} ({reason})")

    def cut_by_tokens(self, name: str, limit: str) -> None:
        self.no_effect(f"use_dynamic_bsz cuts micro-batches by tokens, {limit}", name)

    def off(self, section: str) -> None:
        """Report the keys that were set of a part that its `enable` leaves switched off."""
        switch = f"{section}.enable"
        self.unused(f"{switch} is false", *(name for name in self.below(section) if name != switch))

    def below(self, section: str) -> list[str]:
        return sorted(name for name in self.explicit if name.startswith(section + "."))
