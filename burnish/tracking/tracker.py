"""`Tracker`: takes the metrics of a step and hands them to every logger named in `trainer.logger`; metrics.jsonl is
written whatever these are. Events go to events.jsonl. From `with` to `close` the process is watched (watchdog.py).

    with RunFolder.of(config.trainer) as folder, Tracker(config.trainer, folder) as tracker:
        tracker.resume(step)            # only where the run resumes from a checkpoint
        tracker.log({"reward/mean": 0.5}, step)
"""

import importlib
import importlib.util
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from burnish import spans
from burnish.config.nearest import nearest
from burnish.errors import CheckpointError, ConfigError, install_command
from burnish.health.rule import NOTE
from burnish.health.watch import Health
from burnish.literal import one_line
from burnish.tracking.base import Backend, RunFacts, few_samples
from burnish.tracking.failure import write_failure
from burnish.tracking.jsonl import LineFile, newest_samples, read_metrics
from burnish.tracking.plot import plot_curve, usual_metrics
from burnish.tracking.run_folder import PLOT_FILE, RunFolder
from burnish.tracking.transcript import keep_in, recorded
from burnish.tracking.watchdog import Watchdog
from burnish.user_code import exit_error
from burnish.waits import waiting

if TYPE_CHECKING:
    from burnish.config.trainer import RunConfig

log = logging.getLogger(__name__)

LOGGER_S = 600.0  # for a logger to take a step, or to close and send all it has

# Logger name → where its backend is, and the package it needs besides the core.
BACKENDS: dict[str, tuple[str, str | None]] = {
    "console": ("burnish.tracking.console:ConsoleBackend", None),
    "jsonl": ("burnish.tracking.jsonl:JsonlBackend", None),
    "tensorboard": ("burnish.tracking.tensorboard:TensorboardBackend", None),
    "wandb": ("burnish.tracking.wandb:WandbBackend", "wandb"),
    "mlflow": ("burnish.tracking.mlflow:MlflowBackend", "mlflow"),
    "trackio": ("burnish.tracking.trackio:TrackioBackend", "trackio"),
}


class Tracker:
    """All loggers of a run as one. Raises ConfigError at once for one that is unknown, not installed, or cannot log."""

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
        self._begun = self._logged = False
        facts = RunFacts(folder.path, trainer.project_name, trainer.experiment_name, total_steps, config or {})
        # jsonl first: should another logger fail, the metrics of the step are on disk.
        self._backends: list[Backend] = []
        for name in dict.fromkeys(["jsonl", *names]):
            module, _, cls = BACKENDS[name][0].partition(":")
            self._backends.append(getattr(importlib.import_module(module), cls)(facts))
            self._check(name, self._backends[-1])
        self._events = LineFile(folder.path / "events.jsonl")
        self.health = Health(config or {}, samples=partial(newest_samples, folder.rollouts))
        self._held: list[dict[str, Any]] = []  # events from before the folder was the run's own
        self._holding = threading.Lock()
        self.watchdog = Watchdog(
            folder.path,
            "controller",
            event=self.event,
            stage=lambda: "running" if folder.begun else "starting" if folder.is_held else "",
            steps=total_steps,
        )
        self._recording = ExitStack()
        self._late = 0  # waits that were reported
        self._restarts = 0  # since the last step

    def _check(self, name: str, backend: Backend) -> None:
        try:
            with waiting("logger", "the tracker", f"{type(backend).__name__} to be checked", LOGGER_S):
                backend.check()
        except (Exception, SystemExit) as error:
            what = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"trainer.logger={name}: {' '.join(what.split()).rstrip('.')}. {backend.remedy}, or use another "
                "logger, e.g. trainer.logger=tensorboard"
            ) from error

    def resume(self, step: int) -> None:
        """The run resumes after `step`: forget what a killed run logged past it. Before the first `log`."""
        if self._logged:
            raise RuntimeError("Tracker.resume was called after the first log: call it once, right after loading")
        self.folder.resume(step)
        for backend in self._backends:
            with waiting("logger", "the tracker", f"{type(backend).__name__} to resume after step {step}", LOGGER_S):
                backend.resume(step)
        for metrics in read_metrics(self.folder.path) if step else []:
            self.health.history.add(metrics, int(metrics["step"]))
        self._begin()
        self.event("resume", step=step)

    def append(self) -> None:
        """Add to what is in the folder, as a validation of a finished run does: nothing is forgotten or moved."""
        self.folder.append()
        self._begin()

    def start(self) -> None:
        """A run from step 0: what an earlier run left in the folder is moved aside. The first `log` does it too."""
        self.folder.begin()
        self._begin()

    def _begin(self) -> None:
        self._write_held()
        if not self._begun:
            self._begun = True
            spans.record(self.folder.path, self.watchdog.name)
            for backend in self._backends:
                backend.begin()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of one step. Values are numbers; NaN and infinities are kept. A name may have parts of a data
        source or a reward function's keys, so its control characters become codes, for every logger."""
        self._logged = True
        self.start()
        numbers = {one_line(name): as_number(name, value) for name, value in metrics.items()}
        before, self._late = self._late, self.watchdog.late
        if self._late > before:
            numbers["failures/late_waits"] = self._late - before
        if self._restarts:
            numbers["failures/restarts"], self._restarts = self._restarts, 0
        for backend in self._backends:
            with waiting("logger", "the tracker", f"{type(backend).__name__} to take step {step}", LOGGER_S):
                backend.log(numbers, step)
        for found in self.health.observe(numbers, step):
            log.log(logging.INFO if found.newest.severity == NOTE else logging.WARNING, "step %d: %s", step, found)
            self.event("finding", step=step, rule=found.rule, **vars(found.newest))
        self.watchdog.step = step

    def write_rollouts(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """The samples of a step: all of them for the run folder, a few for loggers of text."""
        self.start()
        shown = few_samples(rows)
        self.folder.write_rollouts(step, rows)
        for backend in self._backends:
            with waiting("logger", "the tracker", f"{type(backend).__name__} to take samples", LOGGER_S):
                backend.log_samples(shown, step)

    def event(self, kind: str, **facts: Any) -> None:
        """Write one line to events.jsonl: what happened, when, and the facts. In any thread. Until the folder is the
        run's own they are held back: the file that is there is an earlier run's."""
        log.debug("event %s %s", kind, facts)
        self._restarts += kind == "restart"
        with self._holding:
            self._held.append({"time": time.time(), "kind": kind, **facts})
        self._write_held()

    def _write_held(self) -> None:
        if self.folder.begun:
            with waiting("disk", "the tracker", "events to be written", LOGGER_S), self._holding:
                while self._held:
                    self._events.append(self._held[0])
                    del self._held[0]

    def close(self, failed: bool = False, state: str | None = None) -> None:
        """Close every logger, then raise the first failure, if any. `state` is how the run ended, for its last status;
        None: as `failed` and the closing say."""
        if self._logged:
            verdict = self.health.verdict()
            log.info("health: %s", verdict)
            self.event("verdict", step=self.watchdog.step, text=verdict)
        spans.stop_recording()
        failures: list[Exception] = []
        closers: list[tuple[str, Callable[[], None]]] = [("the samples to be written", self.folder.flush)]
        closers += [(f"{type(one).__name__} to close", partial(one.close, failed)) for one in self._backends]
        closers.append((f"{PLOT_FILE} to be drawn", self._plot))
        for what, close in closers:
            try:
                with waiting("logger", "the tracker", what, LOGGER_S):
                    close()
            except Exception as error:  # noqa: BLE001 - one logger must not keep the others open; raised below
                failures.append(error)
        self.watchdog.stop(state or ("failed" if failed or failures else "done"))
        try:
            self._events.close()
        except Exception as error:  # noqa: BLE001 - as above
            failures.append(error)
        if failures:
            raise failures[0]

    def _plot(self) -> None:
        """A picture of the run, where matplotlib is installed and there is something to draw."""
        if not self._logged or not is_installed("matplotlib"):
            return
        try:
            names, title = usual_metrics(self.folder.path), self.folder.path.name
            plot_curve(self.folder.path, self.folder.path / PLOT_FILE, metrics=names, title=title)
        except Exception as error:  # noqa: BLE001 - a run that has trained does not fail for its picture
            log.info("%s was not drawn: %s", PLOT_FILE, error)

    def __enter__(self) -> "Tracker":
        self._recording.enter_context(recorded())
        with suppress(CheckpointError):  # raised when the run begins to write, if it still cannot then
            self.folder.hold()
        self.watchdog.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        was_stopped = isinstance(error, KeyboardInterrupt)
        if error is not None and not was_stopped:
            self._write_failure(error)
        try:
            self.close(error is not None, "stopped" if was_stopped else None)
        except Exception as failure:
            if error is None:
                self._write_failure(failure)
                raise
            log.error("closing the loggers failed: %s", failure)  # the error that ended the run is the one to raise
        finally:
            self.watchdog.stop("failed")  # where the closing was broken off
            self.folder.let_go()
            self._recording.close()

    def _write_failure(self, error: BaseException) -> None:
        if self.folder.is_held:  # else it is, or may be, another run's
            keep_in(self.folder.path)
            error = (exit_error(error) if isinstance(error, SystemExit) else None) or error
            step, phase = self.watchdog.step, "" if self.folder.begun else "start"
            write_failure(self.folder.path, error, step=step, steps=self.watchdog.steps, phase=phase)


def check_loggers(names: Sequence[str]) -> None:
    for name in names:
        if name not in BACKENDS:
            hint = f"Did you mean {near}? " if (near := nearest(name, BACKENDS)) else ""
            raise ConfigError(f"trainer.logger={name}: no such logger. {hint}There are: {', '.join(BACKENDS)}")
        package = BACKENDS[name][1]
        if package and not is_installed(package):
            raise ConfigError(
                f"trainer.logger={name}: the package {package} is not installed. Install it with "
                f"`{install_command(package)}`, or use another logger, e.g. trainer.logger=tensorboard"
            )


def is_installed(package: str) -> bool:
    # A folder of that name in the working directory (wandb makes one) looks like a package without an origin.
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def as_number(name: str, value: Any) -> float:
    """A metric as a Python number; numpy and one-element tensors are taken as they are."""
    try:
        return value if isinstance(value, int | float) else float(value)
    except (TypeError, ValueError):
        raise TypeError(f"metric {name}: a number was expected, not {value!r}") from None
