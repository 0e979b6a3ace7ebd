"""`Tracker`: takes the metrics of a step and hands them to every logger named in `trainer.logger`.

Consumes plain numbers by name; hands them to console, jsonl, tensorboard, wandb or mlflow. `metrics.jsonl` is written
whatever the loggers are. Events (failures, waits, restarts) go to `events.jsonl`, flushed line by line.

    with RunFolder.of(config.trainer) as folder, Tracker(config.trainer, folder) as tracker:
        tracker.resume(step)            # only where the run goes on from a checkpoint
        tracker.log({"reward/mean": 0.5}, step)
"""

import difflib
import importlib
import importlib.util
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from burnish.errors import ConfigError
from burnish.tracking.base import Backend, RunFacts
from burnish.tracking.jsonl import LineFile
from burnish.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from burnish.config.trainer import RunConfig

log = logging.getLogger(__name__)

# Logger name → where its backend is, and the package it needs besides the core.
BACKENDS: dict[str, tuple[str, str | None]] = {
    "console": ("burnish.tracking.console:ConsoleBackend", None),
    "jsonl": ("burnish.tracking.jsonl:JsonlBackend", None),
    "tensorboard": ("burnish.tracking.tensorboard:TensorboardBackend", None),
    "wandb": ("burnish.tracking.wandb:WandbBackend", "wandb"),
    "mlflow": ("burnish.tracking.mlflow:MlflowBackend", "mlflow"),
}


class Tracker:
    """All loggers of a run as one. Raises ConfigError at once for an unknown logger or a missing package."""

    def __init__(
        self,
        trainer: "RunConfig",
        folder: RunFolder,
        *,
        total_steps: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        names = [trainer.logger] if isinstance(trainer.logger, str) else list(trainer.logger)
        check_loggers(names)
        self.folder = folder
        self._logged = False
        facts = RunFacts(
            folder=folder.path,
            project=trainer.project_name,
            experiment=trainer.experiment_name,
            total_steps=total_steps,
            config=config or {},
        )
        # jsonl first: should another logger fail, the figures of the step are on disk.
        self._backends = [make_backend(name, facts) for name in dict.fromkeys(["jsonl", *names])]
        self._events = LineFile(folder.path / "events.jsonl")

    def resume(self, step: int) -> None:
        """The run goes on after `step`: forget what a killed run logged past it. Before the first `log`."""
        if self._logged:
            raise RuntimeError("Tracker.resume was called after the first log: call it once, right after loading")
        self.folder.resume(step)
        for backend in self._backends:
            backend.resume(step)
        self.event("resume", step=step)

    def append(self) -> None:
        """Add to what is in the folder, as a validation of a finished run does: nothing is forgotten or moved."""
        self.folder.append()

    def start(self) -> None:
        """A run from step 0: what an earlier run left in the folder is moved aside. The first `log` does it too."""
        self.folder.begin()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of one step. Values are numbers; NaN and infinities are kept."""
        self._logged = True
        self.start()
        numbers = {name: as_number(name, value) for name, value in metrics.items()}
        for backend in self._backends:
            backend.log(numbers, step)

    def event(self, kind: str, **facts: Any) -> None:
        """Write one line to events.jsonl: what happened, when, and the facts."""
        log.debug("event %s %s", kind, facts)
        self._events.append({"time": time.time(), "kind": kind, **facts})

    def close(self, failed: bool = False) -> None:
        """Close every logger, then raise the first failure of closing, if any."""
        failures: list[Exception] = []
        closers: list[Callable[[], None]] = [partial(backend.close, failed) for backend in self._backends]
        for close in [*closers, self._events.close]:
            try:
                close()
            except Exception as error:  # noqa: BLE001 - one logger must not keep the others open; raised below
                failures.append(error)
        if failures:
            raise failures[0]

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(failed=True)
        except Exception as failure:  # noqa: BLE001 - the error that ended the run is the one to raise
            log.error("closing the loggers failed: %s", failure)


def check_loggers(names: Sequence[str]) -> None:
    """Raise ConfigError for a logger that does not exist or whose package is not installed."""
    for name in names:
        if name not in BACKENDS:
            near = difflib.get_close_matches(name, BACKENDS, n=1)
            raise ConfigError(
                f"trainer.logger={name}: no such logger. "
                + (f"Did you mean {near[0]}? " if near else "")
                + f"There are: {', '.join(BACKENDS)}"
            )
        package = BACKENDS[name][1]
        if package and not is_installed(package):
            raise ConfigError(
                f"trainer.logger={name}: the package {package} is not installed. Install it with "
                f"`pip install burnish[{package}]`, or use another logger, e.g. trainer.logger=tensorboard"
            )


def is_installed(package: str) -> bool:
    # A folder of that name in the working directory (wandb makes one) looks like a package without an origin.
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def make_backend(name: str, facts: RunFacts) -> Backend:
    module, _, cls = BACKENDS[name][0].partition(":")
    backend: Backend = getattr(importlib.import_module(module), cls)(facts)
    return backend


def as_number(name: str, value: Any) -> float:
    """A metric as a Python number; numpy and one-element tensors are taken as they are."""
    try:
        return value if isinstance(value, int | float) else float(value)
    except (TypeError, ValueError):
        raise TypeError(f"metric {name}: a number was expected, not {value!r}") from None
