"""`Health`: asks all rules after each step, reports what is new or worse, and sums up at the end.

health = Health(keys, samples=read_newest_samples)
health.observe(metrics, step)
print(health.verdict())
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from burnish.health.history import LOSS, SCORE, History, mean, noise
from burnish.health.rule import BROKEN, SEVERITIES, Finding, Rule, all_rules

log = logging.getLogger(__name__)

LATELY = 10  # steps; a finding not seen for longer is over
ENOUGH = 12  # points of the reward or loss that a verdict needs


@dataclass
class Found:
    """A rule's findings so far."""

    rule: str
    worst: Finding
    newest: Finding
    first_step: int
    last_step: int
    steps: int = 1
    samples: list[str] = field(default_factory=list)  # as they were when it was new or became worse

    def __str__(self) -> str:
        shown = "".join(f"\n    {sample}" for sample in self.samples)
        return f"{self.newest.severity} [{self.rule}] {self.newest.evidence}. Try: {self.newest.remedy}{shown}"


class Health:
    def __init__(
        self,
        keys: Mapping[str, Any],
        *,
        samples: Callable[[int], list[dict[str, Any]]] = lambda count: [],
        rules: Mapping[str, Rule] | None = None,
    ):
        self.rules = dict(all_rules() if rules is None else rules)
        watched = {name for rule in self.rules.values() for name in rule.watches}
        self.history = History(keys, watched | {SCORE, LOSS}, samples)
        self.found: dict[str, Found] = {}

    def observe(self, metrics: Mapping[str, float], step: int) -> list[Found]:
        """What is new or worse after this step."""
        self.history.add(metrics, step)
        news = []
        for name, rule in list(self.rules.items()):
            try:
                finding = rule.check(self.history)
            except Exception as error:  # noqa: BLE001 (a rule, perhaps a user's, must not end the run)
                log.warning("health rule %s failed and is left out: %s: %s", name, type(error).__name__, error)
                del self.rules[name]
                continue
            if finding is not None and self._note(name, finding, step):
                self.found[name].samples = self.history.scored_samples(finding.samples) if finding.samples else []
                news.append(self.found[name])
        return news

    def _note(self, name: str, finding: Finding, step: int) -> bool:
        """Whether it is new, or worse than it was."""
        if (one := self.found.get(name)) is None:
            self.found[name] = Found(name, finding, finding, step, step)
            return True
        is_worse = _rank(finding) > _rank(one.worst)
        one.newest, one.last_step, one.steps = finding, step, one.steps + 1
        one.worst = finding if is_worse else one.worst
        return is_worse

    def current(self) -> list[Found]:
        """What still holds, the worst first."""
        held = [one for one in self.found.values() if one.last_step > self.history.step - LATELY]
        return sorted(held, key=lambda one: -_rank(one.worst))

    def broken(self) -> Found | None:
        """The first of the findings that still hold and say so."""
        broken = [one for one in self.current() if one.worst.severity == BROKEN]
        return min(broken, key=lambda one: one.first_step, default=None)

    def verdict(self) -> str:
        """One line on the whole run, and one on each finding that still holds."""
        broken = self.broken()
        lines = [f"broke at step {broken.first_step}" if broken else self._learned()]
        for one in self.current():
            lines.append(f"  since step {one.first_step}, in {one.steps} steps: {one}")
        return "\n".join(lines)

    def _learned(self) -> str:
        name, what = (SCORE, "mean reward") if self.history.points(SCORE) else (LOSS, "training loss")
        values = [value for _, value in self.history.points(name)]
        if len(values) < ENOUGH:
            return f"{self.history.step} steps are too few to say whether it learned"
        part = len(values) // 4
        first, last = mean(values[:part]), mean(values[-part:])
        gained = last - first if name == SCORE else first - last
        said = "learned" if gained > 3 * noise(values) * math.sqrt(2 / part) else "did not learn"
        return f"{said}: {what} {first:.3g} in the first quarter, {last:.3g} in the last"


def _rank(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity)
