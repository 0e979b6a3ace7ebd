"""The contract of a logger: what `Tracker` calls, and what each of its backends is made of."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.literal import literal
from burnish.tracking.disk import write_atomically

SAMPLE = ("prompt", "response", "ground_truth", "score")  # what loggers get of a sample
SAMPLES = 3  # of a step


def few_samples(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What loggers get of the samples of a step; their control characters are codes."""
    return [{name: literal(str(row.get(name))) for name in SAMPLE} for row in rows[:SAMPLES]]


@dataclass(frozen=True)
class RunFacts:
    """What a backend may know of the run: its folder, its names, its length and its resolved configuration."""

    folder: Path
    project: str
    experiment: str
    total_steps: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


class Backend(ABC):
    """One logger. It is made before any model loads, and opens nothing until it is used.

    remedy  what to do where `check` fails, as a sentence that goes on
    """

    remedy = "Install the package again"

    def __init__(self, facts: RunFacts):
        self.facts = facts

    def check(self) -> None:
        """Raise what would keep it from logging: a package that cannot be imported, no login, a server that does not
        answer. Called when it is made."""
        return None

    def begin(self) -> None:
        """The run begins, or resumes: called once, before all else but `resume`."""
        return None

    def resume(self, step: int) -> None:
        """The run resumes after `step`: what was logged past it was lost with the killed run. Called before `log`."""
        return None

    @abstractmethod
    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def log_samples(self, samples: Sequence[Mapping[str, Any]], step: int) -> None:  # noqa: B027
        """A few samples of the step, each with the fields of `SAMPLE`, before its metrics; for loggers of text."""

    def close(self, failed: bool = False) -> None:
        """The run ended. `failed` is true when an exception ended it."""
        return None


class RememberedBackend(Backend):
    """A logger of a service whose run has an id, which the run folder remembers for a run that resumes."""

    id_file: str

    def __init__(self, facts: RunFacts):
        super().__init__(facts)
        self._run: Any = None
        self._resumed = False

    def resume(self, step: int) -> None:
        self._resumed = True

    def remembered(self) -> str | None:
        """The id of the run that is resumed; None: a new one."""
        file = self.facts.folder / self.id_file
        return file.read_text().strip() if self._resumed and file.is_file() else None

    def remember(self, run_id: str) -> None:
        write_atomically(self.facts.folder / self.id_file, [run_id])
