"""Checkpoint folders that are either complete or not there.

`CheckpointStore.save(step, write)` lets the caller fill a temporary folder, adds a manifest of every file and its
size, syncs it to disk and renames it to `global_step_N`; only then the pointer `latest_checkpointed_iteration.txt`
is replaced and old folders are pruned. A process killed at any instant, also one of several that fill the folder
together, therefore leaves the previous checkpoint whole. All of it is done by a thread, one save at a time, which
`save` waits for, up to a deadline. `save_behind` does not wait; `finished` gives how it ended.

Reading starts with `verify`, so that a truncated copy is named before any weight is loaded. What is inside (weights,
optimiser state, trainer state) belongs to whoever writes it; nothing here unpickles.
"""

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from safetensors import SafetensorError

from burnish.config.trainer import TrainerConfig
from burnish.errors import CheckpointError, ConfigError, WorkerError
from burnish.models.adapters import ADAPTER_WEIGHTS
from burnish.models.folder import ENGINE, LATEST, MANIFEST, SHARDED, STEP_FOLDER, check_whole, shard_names
from burnish.tracking.background import Background

log = logging.getLogger(__name__)

WRITING, REPLACED = ".writing", ".replaced"
PROBE = ".probe"


class CheckpointStore:
    """The checkpoints under one run folder; `keep` newest ones survive (None: all).

    deadline_s   seconds for the files of one to be written or read
    """

    def __init__(self, root: str | Path, keep: int | None = None, deadline_s: float = TrainerConfig.checkpoint_timeout):
        self.root = Path(root)
        self.keep = keep
        self.deadline_s = deadline_s
        hint = (
            "The previous checkpoint is whole, and the same command resumes from the newest. Raise "
            "trainer.checkpoint_timeout, or name another folder with trainer.default_local_dir"
        )
        self._writer = Background[Path]("burnish-checkpoint", "checkpoint", deadline_s, hint=hint, owner="the trainer")
        self._umask = os.umask(0)  # it can be read only by being set, for all threads: here, before there are others
        os.umask(self._umask)

    def save(self, step: int, write: Callable[[Path], None]) -> Path:
        """Write `global_step_<step>` through `write(folder)`, all or nothing; returns the finished folder.

        DeadlineError where that takes too long. `write` is called in the writer's thread, while this one waits: a disk
        that hangs is given up, and does not keep the process from ending.
        """
        self.save_behind(step, write)
        finished = self.finished(wait=True)
        assert finished is not None
        return finished

    def _save(self, step: int, write: Callable[[Path], None]) -> Path:
        final = self.folder(step)
        temporary = self.root / f".{final.name}{WRITING}"
        with disk_errors(final):
            self.root.mkdir(parents=True, exist_ok=True)
            self._restore_replaced()
            self._sweep()
            temporary.mkdir()
            write(temporary)
            _ask_again(temporary)
            _check_shards(temporary)
            _apply_umask(temporary, self._umask)
            _write_manifest(temporary, step)
            _sync_tree(temporary)
            self._put_in_place(temporary, final)
            self._point_to(step)
            self._prune(step)
        return final

    def save_behind(self, step: int, write: Callable[[Path], None]) -> None:
        """Begin to `save`; `write` must not read what training changes. Waits for a save before it."""
        self.finished(wait=True)
        self._writer.start(lambda: self._save(step, write), f"writing checkpoint {self.folder(step)}")

    def finished(self, *, wait: bool) -> Path | None:
        """The checkpoint that was completed since the last call, or raises why it could not be.

        None where there is none. With `wait` one that is on its way is waited for, up to a deadline.
        """
        return self._writer.outcome(wait=wait)

    def folder(self, step: int) -> Path:
        """Where the checkpoint of a step is, or would be."""
        return self.root / f"global_step_{step}"

    def latest(self) -> Path | None:
        """The newest complete checkpoint: the one the pointer names, else the newest that verifies.

        One that is damaged is passed over with a warning that names it. Where there are some and all are damaged, that
        is an error: to start over silently would throw a run away.
        """
        self._restore_replaced()
        damaged = None
        for folder in dict.fromkeys([*self._pointed_to(), *reversed(self._folders())]):
            try:
                verify(folder)
            except CheckpointError as error:
                log.warning("passed over: %s", error)
                damaged = error
            else:
                return folder
        if damaged is not None:
            raise CheckpointError(
                f"{self.root} has checkpoints, but none is whole ({damaged}). Restore one, or start over with "
                "trainer.resume_mode=disable"
            )
        return None

    def to_resume(self, mode: str, path: str | None) -> Path | None:
        """Where `trainer.resume_mode` says to resume from; None starts over."""
        if mode == "disable":
            return None
        if mode == "auto":
            return self.latest()
        if not path:
            raise ConfigError("trainer.resume_mode=resume_path needs trainer.resume_from_path=…/global_step_N")
        folder = Path(path).expanduser()
        verify(folder)
        return folder

    def _pointed_to(self) -> list[Path]:
        """The folder that the pointer names, if it names one."""
        pointer = self.root / LATEST
        if not pointer.exists():
            return []
        step = pointer.read_text(errors="replace").strip()
        if not step.isdecimal():
            log.warning(
                "%s does not hold the number of a step, but %r; the newest whole checkpoint is taken", pointer, step
            )
            return []
        return [self.folder(int(step))]

    def _folders(self) -> list[Path]:
        found = [(int(m[1]), p) for p in self.root.glob("global_step_*") if (m := STEP_FOLDER.fullmatch(p.name))]
        return [path for _, path in sorted(found)]

    def _put_in_place(self, temporary: Path, final: Path) -> None:
        # A folder cannot be renamed over a full one, so an earlier save of the same step steps aside first.
        aside = final.with_name(f".{final.name}{REPLACED}")
        if final.exists():
            final.rename(aside)
        temporary.rename(final)
        _sync(self.root)
        shutil.rmtree(aside, ignore_errors=True)

    def _restore_replaced(self) -> None:
        """Put back what was aside when a process was killed while one save took the place of another."""
        for aside in self.root.glob(f".global_step_*{REPLACED}"):
            final = self.root / aside.name.removeprefix(".").removesuffix(REPLACED)
            if not final.exists():
                with disk_errors(final):
                    aside.rename(final)

    def _sweep(self) -> None:
        """Remove what interrupted saves left behind."""
        for pattern in (WRITING, REPLACED):
            for left in self.root.glob(f".global_step_*{pattern}"):
                shutil.rmtree(left, ignore_errors=True)

    def _point_to(self, step: int) -> None:
        new = self.root / f".{LATEST}.writing"
        new.write_text(f"{step}\n")
        _sync(new)
        new.replace(self.root / LATEST)
        _sync(self.root)

    def _prune(self, newest: int) -> None:
        if self.keep is None:
            return
        # Folders past `newest` are left by an earlier run that went further; they are not this run's to delete.
        ours = [p for p in self._folders() if step_of(p) <= newest]
        for folder in ours[: -self.keep]:
            shutil.rmtree(folder)


def step_of(folder: Path) -> int:
    """The training step a checkpoint folder was written after."""
    match = STEP_FOLDER.fullmatch(folder.name)
    if not match:
        raise CheckpointError(f"{folder} is not a checkpoint folder: its name should be global_step_N")
    return int(match[1])


def verify(folder: Path) -> None:
    """Raise a CheckpointError unless every file of the manifest is there with its size."""
    if not folder.is_dir():
        raise CheckpointError(f"no checkpoint at {folder}: trainer.resume_from_path should name a global_step_N folder")
    check_whole(folder, "resume from an earlier step with trainer.resume_mode=resume_path trainer.resume_from_path=…")


def link_model_files(folder: Path, source: str) -> None:
    """Make `folder` itself loadable by transformers: relative links to the HF files of its subfolder `source`."""
    for path in sorted((folder / source).iterdir()):
        is_model = path.name.startswith("model") and path.suffix in (".safetensors", ".json")
        is_adapter = path.name == ADAPTER_WEIGHTS
        is_text = path.suffix in (".json", ".jinja", ".txt", ".model")
        if path.is_file() and (is_model or is_adapter or is_text) and path.name != ENGINE:
            (folder / path.name).symlink_to(Path(source) / path.name)


def _ask_again(folder: Path) -> None:
    """Have a network file system list what other machines wrote into a folder and those below.

    NFS answers from what it remembers of a folder, for up to a minute, until this machine changes something in it.
    """
    probe = folder / PROBE
    probe.touch()
    probe.unlink()
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            _ask_again(path)


def _check_shards(folder: Path) -> None:
    """CheckpointError unless what each process of several wrote of a model is there."""
    for engine in folder.rglob(ENGINE):
        facts = json.loads(engine.read_text())
        kinds = [name for part, name in SHARDED.items() if part in facts["parts"]]
        for name in (shard for kind in kinds for shard in shard_names(kind, facts.get("shards", 1))):
            if not engine.with_name(name).is_file():
                raise CheckpointError(
                    f"{engine.with_name(name)} was written by another process, but not to this machine's storage, so "
                    "the checkpoint is not complete. Set trainer.default_local_dir to a folder on storage that all "
                    "machines of the run share"
                )


def _write_manifest(folder: Path, step: int) -> None:
    files = {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
    (folder / MANIFEST).write_text(json.dumps({"step": step, "files": files}, indent=1))


def _apply_umask(folder: Path, umask: int) -> None:
    """Give files the mode that the user's umask asks for; safetensors makes its own readable by the owner alone."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o666 & ~umask)


def _sync_tree(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        if not path.is_symlink():
            _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def disk_errors(target: Path) -> Iterator[None]:
    """What keeps a checkpoint from being written as a CheckpointError that says what to do."""
    try:
        yield
    except (OSError, SafetensorError, WorkerError) as error:  # safetensors wraps the system's error in its own
        cause = error.__cause__ if isinstance(error, WorkerError) else error
        if not isinstance(cause, OSError | SafetensorError):
            raise
        reason = getattr(cause, "strerror", None) or cause
        raise CheckpointError(
            f"cannot write checkpoint {target}: {reason}. The previous checkpoint is untouched; free "
            f"space or set trainer.default_local_dir to a folder that can be written, then run the same command again"
        ) from error
