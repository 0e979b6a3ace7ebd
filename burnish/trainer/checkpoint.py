"""Checkpoint folders that are either complete or not there, and the state of the controller in them.

`CheckpointStore.save(step, write)` lets the caller fill a temporary folder, adds a manifest of every file and its size,
syncs it to disk and renames it to `global_step_N`; only then `latest_checkpointed_iteration.txt` is replaced and old
folders are pruned. A process killed at any instant leaves the previous checkpoint whole. `data/trainer.json` has the
state, and the facts that make a run this run: resuming under others is refused. Nothing unpickles.
"""

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from burnish.config import PPOConfig
from burnish.config.key import keys_of, read
from burnish.config.trainer import TrainerConfig
from burnish.errors import CheckpointError, ConfigError, WorkerError
from burnish.models.adapters import ADAPTER_WEIGHTS
from burnish.models.folder import ENGINE, LATEST, MANIFEST, SHARDED, STEP_FOLDER, check_whole, fingerprint, shard_names
from burnish.tracking.background import Background

log = logging.getLogger(__name__)

WRITING, REPLACED = ".writing", ".replaced"
PROBE = ".probe"
STATE = "data/trainer.json"
MODEL, PROCESS_REWARD = "actor_rollout_ref.model.path", "process_reward.model.path"
PLANNED = "enable_gradient_checkpointing"  # planned from the device's memory; it changes no result
PARTS = ("experience", "kl", "correction", "bad_steps", "run", "config")


class CheckpointStore:
    """The checkpoints under one run folder: the `keep` newest (None: all); `deadline_s` to write or read one."""

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
        """Write `global_step_<step>` through `write(folder)`, all or nothing; returns the finished folder. A disk that
        hangs is given up (DeadlineError), and does not keep the process from ending."""
        self.save_behind(step, write)
        finished = self.finished(wait=True)
        assert finished is not None
        return finished

    def _save(self, step: int, write: Callable[[Path], None]) -> Path:
        final = self.folder(step)
        temporary, pointer = self.root / f".{final.name}{WRITING}", self.root / f".{LATEST}.writing"
        with disk_errors(final):
            self.root.mkdir(parents=True, exist_ok=True)
            self._restore_replaced()
            for kind in (WRITING, REPLACED):  # left behind by interrupted saves
                for left in self.root.glob(f".global_step_*{kind}"):
                    shutil.rmtree(left, ignore_errors=True)
            temporary.mkdir()
            write(temporary)
            _ask_again(temporary)
            _check_shards(temporary)
            for path in temporary.rglob("*"):  # safetensors makes its files readable by the owner alone
                if path.is_file() and not path.is_symlink():
                    path.chmod(0o666 & ~self._umask)
            _write_manifest(temporary, step)
            for path in [*temporary.rglob("*"), temporary]:
                if not path.is_symlink():
                    _sync(path)
            self._put_in_place(temporary, final)
            pointer.write_text(f"{step}\n")
            _sync(pointer)
            pointer.replace(self.root / LATEST)
            _sync(self.root)
            self._prune(step)
        return final

    def save_behind(self, step: int, write: Callable[[Path], None]) -> None:
        """Begin to `save`; `write` must not read what training changes. Waits for a save before it."""
        self.finished(wait=True)
        self._writer.start(lambda: self._save(step, write), f"writing checkpoint {self.folder(step)}")

    def finished(self, *, wait: bool) -> Path | None:
        """The checkpoint completed since the last call; raises why it could not be. `wait`: up to the deadline."""
        return self._writer.outcome(wait=wait)

    def folder(self, step: int) -> Path:
        return self.root / f"global_step_{step}"

    def latest(self) -> Path | None:
        """The newest complete checkpoint: the one the pointer names, else the newest that verifies. Damaged ones are
        passed over with a warning. If all are, it is an error: to start over would throw a run away."""
        self._restore_replaced()
        damaged = None
        pointer, named = self.root / LATEST, list[Path]()
        if pointer.exists():
            step = pointer.read_text(errors="replace").strip()
            if step.isdecimal():
                named = [self.folder(int(step))]
            else:
                text = "%s does not hold the number of a step, but %r; the newest whole checkpoint is taken"
                log.warning(text, pointer, step)
        for folder in dict.fromkeys([*named, *reversed(self._folders())]):
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
        if mode == "disable":
            return None
        if mode == "auto":
            return self.latest()
        if not path:
            raise ConfigError("trainer.resume_mode=resume_path needs trainer.resume_from_path=…/global_step_N")
        folder = Path(path).expanduser()
        verify(folder)
        return folder

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

    def _prune(self, newest: int) -> None:
        if self.keep is None:
            return
        # Folders past `newest` are left by an earlier run that went further; they are not this run's to delete.
        ours = [p for p in self._folders() if step_of(p) <= newest]
        for folder in ours[: -self.keep]:
            shutil.rmtree(folder)


def is_due(every: int | None, step: int, last: int) -> bool:
    """Whether to save, or to validate: every `every` steps and after the last; None: only after the last, -1: never."""
    if every == -1:
        return False
    return step == last or (every is not None and step % every == 0)


def step_of(folder: Path) -> int:
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
        is_model = path.name == ADAPTER_WEIGHTS or (path.name.startswith("model") and path.suffix == ".safetensors")
        is_text = path.suffix in (".json", ".jinja", ".txt", ".model")
        if path.is_file() and (is_model or is_text) and path.name != ENGINE:
            (folder / path.name).symlink_to(Path(source) / path.name)


def _ask_again(folder: Path) -> None:
    """Have a network file system list what other machines wrote below a folder: until this machine changes something
    there, NFS answers from memory for up to a minute."""
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


def run_facts(config: PPOConfig, rows: int) -> dict[str, Any]:
    """What must be the same for a resumed run to be the same run, by the key that says it."""
    data, sampler, curriculum = config.data, config.data.sampler, config.data.curriculum
    process_reward = config.process_reward
    augment = asdict(data.augment) if data.augment.enable else dict.fromkeys(asdict(data.augment))
    return {
        "rows of data.train_files": rows,
        "data.train_batch_size": data.train_batch_size,
        "data.seed": data.seed,
        "data.shuffle": data.shuffle,
        "data.dataset_weights": data.dataset_weights,
        "data.curriculum": {"key": curriculum.key, "stages": curriculum.stages},
        "data.sampler": {"class_path": sampler.class_path, "class_name": sampler.class_name},
        **{f"data.augment.{name}": value for name, value in augment.items()},
        "trainer.seed": config.trainer.seed,
        MODEL: fingerprint(config.actor_rollout_ref.model.path),
        **({PROCESS_REWARD: fingerprint(process_reward.model.path)} if process_reward.enable else {}),
    }


def changed_keys(theirs: Mapping[str, Any], config: Any) -> list[str]:
    """`key: then → now` for each key whose value is not the one the checkpoint was saved with."""
    ours = key_values(config)
    return [f"{name}: {theirs[name]} → {value}" for name, value in ours.items() if theirs.get(name, value) != value]


def key_values(config: Any) -> dict[str, Any]:
    """The keys of a command's configuration with their values, as they read back from JSON; without PLANNED."""
    names = [name for name in keys_of(type(config)) if name.rpartition(".")[2] != PLANNED]
    values: dict[str, Any] = json.loads(json.dumps({name: read(config, name) for name in names}))
    return values


def read_state(folder: Path) -> dict[str, Any]:
    path = folder / STATE
    try:
        state: dict[str, Any] = json.loads(path.read_text())
        missing = [name for name in PARTS if name not in state]
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is not a checkpoint of `burnish ppo`: it has no {STATE}") from error
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); resume from another step") from error
    if missing:
        raise CheckpointError(f"{path} is damaged (no {', '.join(missing)} in it); resume from another step")
    return state


def check_same_run(folder: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    ours = json.loads(json.dumps(ours))  # as it would be read back
    for name, value in ours.items():
        if name not in theirs or theirs[name] == value:
            continue
        if name in (MODEL, PROCESS_REWARD):
            raise CheckpointError(
                f"{folder} is a checkpoint of another model: the weights at {name} are not those its run started "
                "from. Name that model again, or start a new run with trainer.default_local_dir=<another folder>"
            )
        raise CheckpointError(
            f"{folder} was saved with {name}={theirs[name]}, and this run has {value}: it would continue with other "
            f"prompts. Set it back, or start over with trainer.default_local_dir=<another folder> {MODEL}={folder}"
        )
