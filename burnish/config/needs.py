"""`Needs`: what an estimator or a loss asks of the run. Algorithms declare it; finalise and setup read it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """What has to be there for an algorithm to run."""

    critic: bool = False
    groups: bool = False
    greedy_baseline: bool = False
    reward_components: bool = False
    outputs: tuple[str, ...] = ()

    def __or__(self, other: "Needs") -> "Needs":
        """What both ask for."""
        return Needs(
            self.critic or other.critic,
            self.groups or other.groups,
            self.greedy_baseline or other.greedy_baseline,
            self.reward_components or other.reward_components,
            tuple(dict.fromkeys((*self.outputs, *other.outputs))),
        )
