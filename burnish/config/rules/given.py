"""`Given`: what a rule knows besides the configuration."""

from dataclasses import dataclass, field

from burnish.config.needs import Needs


@dataclass
class Given:
    """The keys that a user or recipe set, the algorithm's needs, and the notices of the rules for the user."""

    explicit: frozenset[str] = frozenset()
    needs: Needs = field(default_factory=Needs)
    notices: list[str] = field(default_factory=list)

    def __contains__(self, name: str) -> bool:
        return name in self.explicit

    def say(self, text: str) -> None:
        """Tell the user once what was decided for them."""
        if text not in self.notices:
            self.notices.append(text)

    def unused(self, reason: str, *names: str) -> None:
        """Tell the user which of these keys were set and are not read."""
        if there := [name for name in names if name in self]:
            self.say(f"unused: {', '.join(there)} ({reason})")

    def cut_by_tokens(self, name: str, limit: str) -> None:
        """Tell the user that a size in sequences is not read."""
        self.say(f"no effect: {name} (use_dynamic_bsz cuts micro-batches by tokens, {limit})")

    def off(self, section: str) -> None:
        """Tell the user which keys were set of a part that its `enable` leaves switched off."""
        self.unused(
            f"{section}.enable is false", *(name for name in self.below(section) if name != f"{section}.enable")
        )

    def below(self, section: str) -> list[str]:
        """The keys of a section that were set."""
        return sorted(name for name in self.explicit if name.startswith(section + "."))
