"""The contract of a logger: what `Tracker` calls, and what each of its backends is made of."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunFacts:
    """What a backend may know of the run: its folder, its names, its length and its resolved configuration."""

    folder: Path
    project: str
    experiment: str
    total_steps: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


class Backend(ABC):
    """One logger. It is made before any model loads, and opens nothing until it is used."""

    def __init__(self, facts: RunFacts):
        self.facts = facts

    def begin(self) -> None:
        """The run begins, or resumes: called once, before all else but `resume`."""
        return None

    def resume(self, step: int) -> None:
        """The run resumes after `step`: what was logged past it was lost with the killed run. Called before `log`."""
        return None

    @abstractmethod
    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self, failed: bool = False) -> None:
        """The run ended. `failed` is true when an exception ended it."""
        return None
