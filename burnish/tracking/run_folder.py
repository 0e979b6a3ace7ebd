"""The run folder: all that a run leaves on disk (docs/run-folder.md lists it). Samples are written in the background,
so that training does not wait for the disk; a failed write is raised by the next call."""

import itertools
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

from burnish import spans
from burnish.config.build import to_recipe, to_yaml
from burnish.config.key import keys_of, read
from burnish.errors import CheckpointError, ConfigError
from burnish.tracking.background import Background
from burnish.tracking.disk import OTHER_RUN, disk_problem, json_line, write_atomically
from burnish.tracking.failure import ERROR_FILE
from burnish.tracking.lock import FolderLock
from burnish.tracking.transcript import CONSOLE_FILE, keep_in
from burnish.tracking.watchdog import STACKS, STATUS

if TYPE_CHECKING:
    from burnish.config.trainer import TrainerConfig

log = logging.getLogger(__name__)

CONFIG_FILE, RECIPE_FILE, PLOT_FILE, PROFILES = "config.yaml", "recipe.yaml", "plot.png", "profiles"
LEFT_BY_A_RUN = (
    # Moved in this order: the pointer before the checkpoints, so that it never names one that is gone.
    "latest_checkpointed_iteration.txt", ".latest_checkpointed_iteration.txt.*", "global_step_*", ".global_step_*",
    CONFIG_FILE, RECIPE_FILE, "metrics.jsonl", "events.jsonl", "rollouts", "validation", "bad_steps", "tensorboard",
    PLOT_FILE, PROFILES,
)  # fmt: skip
WRITE_DEADLINE_S = 600.0  # for samples to be written
WRITE_HINT = "Name another folder with trainer.default_local_dir, or dump less often with trainer.rollout_dump_freq"
# Moved with these; alone they belong to this run, whose processes exist, and may fail, before it begins.
OTHERS = (STATUS, STACKS, spans.FOLDER, CONSOLE_FILE, ERROR_FILE)


class RunFolder:
    """Makes the folder (a ConfigError if it cannot be written) and writes what belongs in it.

    `rollouts` and `validation` put the samples elsewhere (`trainer.rollout_data_dir`, `trainer.validation_data_dir`).
    Such a folder may be shared by runs: nothing in it is moved or removed.

    A run calls one of `begin`, `resume` and `append` before it writes; config.yaml and recipe.yaml appear with that
    call. From it, or `hold` before it, to `close` no other run can write here: it gets a ConfigError.
    """

    def __init__(
        self, path: str | Path, *, rollouts: str | Path | None = None, validation: str | Path | None = None
    ) -> None:
        self.path = writable_folder(path, "trainer.default_local_dir")
        self.rollouts = writable_folder(rollouts, "trainer.rollout_data_dir") if rollouts else self.path / "rollouts"
        self.validation = (
            writable_folder(validation, "trainer.validation_data_dir") if validation else self.path / "validation"
        )
        self._writer = Background[None](
            "burnish-run-folder", "disk", WRITE_DEADLINE_S, hint=WRITE_HINT, depth=4, rest="writing the queued samples"
        )
        self._lock = FolderLock(self.path)
        self.begun = False  # whether the folder is this run's own by now
        self._about: dict[str, str] = {}  # file name → text, until the run begins

    @classmethod
    def of(cls, trainer: "TrainerConfig") -> "RunFolder":
        return cls(trainer.default_local_dir, rollouts=trainer.rollout_data_dir, validation=trainer.validation_data_dir)

    @property
    def is_held(self) -> bool:
        return self._lock.is_held

    def hold(self) -> None:
        """Keep others out from now on; ConfigError where another run writes here."""
        self._lock.take()

    def let_go(self) -> None:
        """Let others in again, where nothing was written here."""
        if not self.begun:
            self._lock.release()

    def write_config(self, config: Any) -> None:
        self._write_about(CONFIG_FILE, to_yaml(config))

    def write_recipe(self, given: Mapping[str, Any]) -> None:
        """Write recipe.yaml: the keys that were set, by dotted name (`Loaded.given`)."""
        self._write_about(RECIPE_FILE, to_recipe(given))

    def _write_about(self, name: str, text: str) -> None:
        self._about[name] = text
        if self.begun:
            self._start()

    def _start(self) -> None:
        """The folder is the run's own from here on."""
        self.begun = True
        (self.path / ERROR_FILE).unlink(missing_ok=True)
        keep_in(self.path)
        for name, text in self._about.items():
            write_atomically(self.path / name, [text])
        self._about.clear()

    def write_rollouts(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Queue the samples of a step; the rows belong to the writer from now on."""
        self._write_samples(self.rollouts / f"{step}.jsonl", rows)

    def write_validation(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        self._write_samples(self.validation / f"{step}.jsonl", rows)

    def _write_samples(self, path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
        self.begin()
        self._writer.start(lambda: write_atomically(path, map(json_line, rows)), f"writing {path}")

    def resume(self, step: int) -> None:
        """The run resumes after `step`: samples of later steps are removed, but not from folders that it was given."""
        self._lock.take()
        self._start()
        for folder in ("rollouts", "validation"):
            for path in (self.path / folder).glob("*.jsonl"):
                if path.stem.isdecimal() and int(path.stem) > step:
                    path.unlink(missing_ok=True)

    def append(self) -> None:
        """Write next to what is there: nothing is removed, moved or, as config.yaml would be, replaced."""
        self._lock.take()
        self._about = {name: text for name, text in self._about.items() if not (self.path / name).exists()}
        self._start()

    def begin(self) -> None:
        """A run from step 0: what an earlier run left is moved to `previous-<k>/`, so that two runs never mix. The
        first write calls it, unless `resume` came before; later calls do nothing."""
        self._lock.take()
        if self.begun:
            return
        if left := self._left_by_a_run():
            self._move_aside(left + [path for name in OTHERS if (path := self.path / name).exists()])
        self._start()

    def check_inputs_stay(self, config: Any) -> None:
        """ConfigError where a run that is about to `begin` reads what that moves, such as a checkpoint."""
        roots = {Path(os.path.abspath(self.path)), self.path.resolve()}
        left = {root / path.name for root in roots for path in self._left_by_a_run()}
        if not left:
            return
        for name, known in keys_of(type(config)).items():
            if not known.about.path or name.startswith("trainer."):  # those of the trainer say where it writes
                continue
            given = read(config, name) or []
            for value in [given] if isinstance(given, str) else given:
                path = Path(value).expanduser()
                for place in (Path(os.path.abspath(path)), path.resolve()):  # a link is moved, what it names is not
                    if place in roots or not left.isdisjoint((place, *place.parents)):
                        raise ConfigError(
                            f"{name}={value} was left by an earlier run in {self.path}: a run that starts from "
                            f"scratch there moves it aside. Give this run its own folder with {OTHER_RUN}"
                        )

    def _left_by_a_run(self) -> list[Path]:
        return [path for pattern in LEFT_BY_A_RUN for path in sorted(self.path.glob(pattern))]

    def _move_aside(self, left: list[Path]) -> None:
        aside = next(p for k in itertools.count(1) if not (p := self.path / f"previous-{k}").exists())
        try:
            aside.mkdir()
            for path in left:
                path.rename(aside / path.name)
        except OSError as error:
            raise CheckpointError(f"cannot move {self.path} aside: {disk_problem(error)}") from error
        log.warning("%s holds an earlier run; what it left is now in %s", self.path, aside)

    def flush(self) -> None:
        self._writer.outcome(wait=True)

    def close(self) -> None:
        """Flush, and let other runs write here. Calling it again does nothing."""
        try:
            self._writer.outcome(wait=True)
        finally:
            self._lock.release()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            log.error("%s", failure)  # the error that ended the run is the one to raise


def read_config(folder: Path) -> dict[str, Any]:
    """The keys of a run by section; none where there is no readable config.yaml."""
    try:
        keys = yaml.safe_load((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return keys if isinstance(keys, dict) else {}


def writable_folder(path: str | Path, key: str) -> Path:
    """Make a folder and try to write in it, now rather than when the first result is lost."""
    folder = Path(path).expanduser()
    probe = folder / f".writable-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"{key}={path}: cannot write there: {disk_problem(error, key)}") from error
    return folder
