"""Checkpoint folders that are either complete or not there, and the state of the controller in them.

`CheckpointStore.save(step, write)` lets the caller fill a temporary folder, adds a manifest of every file with its size
and digest, syncs it to disk and renames it to `global_step_N`; only then `latest_checkpointed_iteration.txt` is
replaced and old folders are pruned. A process killed at any instant leaves the previous checkpoint whole, and no
`global_step_N` that is not: one that goes is renamed before it is removed. `data/trainer.json` has the state, and the
facts that make a run this run: resuming under others is refused. Nothing unpickles.
"""

import contextlib
import hashlib
import json
import logging
import math
import os
import re
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
from burnish.models.folder import (
    DIGESTS,
    ENGINE,
    LATEST,
    MANIFEST,
    SHARDED,
    STEP_FOLDER,
    check_whole,
    digests_of,
    fingerprint,
    pointed_step,
    read_json,
    shard_names,
)
from burnish.tracking.background import Background
from burnish.tracking.disk import OTHER_RUN
from burnish.waits import waiting

log = logging.getLogger(__name__)

WRITING, REPLACED, REMOVED = ".writing", ".replaced", ".removed"  # of hidden names; what is removed is never whole
PROBE = ".probe"
STATE = "data/trainer.json"
ROWS = "rows of data.train_files"
MODEL, PROCESS_REWARD = "actor_rollout_ref.model.path", "process_reward.model.path"
PLANNED = "enable_gradient_checkpointing", "micro_batch_size_per_gpu"  # planned from memory; they change no result
Quality = tuple[bool, float]  # whether it is a validated one, and how good the model is: more is better
PYTHON_FILE = re.compile(r"(.+\.py)(:\w+)?$")  # my_reward.py, my_manager.py:Mine
COUNTS = 2**53  # more than any run counts to
PARTS = ("experience", "kl", "correction", "bad_steps", "run", "config")


class CheckpointStore:
    """The checkpoints under one run folder: the `keep` newest (None: all), and the best of them with `keep_best`;
    `deadline_s` to write or read one. A checkpoint's quality, if given, is in its manifest."""

    def __init__(
        self,
        root: str | Path,
        keep: int | None = None,
        deadline_s: float = TrainerConfig.checkpoint_timeout,
        keep_best: bool = True,
    ):
        self.root = Path(root)
        self.keep, self.keep_best = keep, keep_best
        self.deadline_s = deadline_s
        self._next = self.root / f".{LATEST}{WRITING}"  # the pointer of a save, until its folder is in place
        hint = (
            "The previous checkpoint is whole, and the same command resumes from the newest. Raise "
            "trainer.checkpoint_timeout, or name another folder with trainer.default_local_dir"
        )
        self._writer = Background[Path]("burnish-checkpoint", "checkpoint", deadline_s, hint=hint, owner="the trainer")
        self._umask = os.umask(0)  # it can be read only by being set, for all threads: here, before there are others
        os.umask(self._umask)

    def save(self, step: int, write: Callable[[Path], None], quality: Quality | None = None) -> Path:
        """Write `global_step_<step>` through `write(folder)`, all or nothing; returns the finished folder. A disk that
        hangs is given up (DeadlineError), and does not keep the process from ending."""
        self.save_behind(step, write, quality)
        finished = self.finished(wait=True)
        assert finished is not None
        return finished

    def _save(self, step: int, write: Callable[[Path], None], quality: Quality | None) -> Path:
        final = self.folder(step)
        temporary = _hidden(final, WRITING)
        with disk_errors(final):
            self.root.mkdir(parents=True, exist_ok=True)
            self._settle()
            temporary.mkdir()
            write(temporary)
            _ask_again(temporary)
            _check_shards(temporary)
            self._seal(temporary, step, quality)
            self._next.write_text(f"{step}\n")
            _sync(self._next)
            self._put_in_place(temporary, final)
            self._next.replace(self.root / LATEST)
            _sync(self.root)
            self._prune(step)
        return final

    def _seal(self, folder: Path, step: int, quality: Quality | None = None) -> None:
        """Add the manifest, and have all of it on the disk."""

        def finish(path: Path) -> None:
            path.chmod(0o666 & ~self._umask)  # safetensors makes its files readable by the owner alone
            _sync(path)

        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        digests = digests_of(files, finish)
        manifest = {
            "step": step,
            "quality": quality,
            "files": {str(path.relative_to(folder)): path.stat().st_size for path in files},
            DIGESTS: {str(path.relative_to(folder)): digest for path, digest in digests.items()},
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
        finish(folder / MANIFEST)
        for path in [*folder.rglob("*"), folder]:
            if path.is_dir() and not path.is_symlink():
                _sync(path)

    def save_behind(self, step: int, write: Callable[[Path], None], quality: Quality | None = None) -> None:
        """Begin to `save`; `write` must not read what training changes. Waits for a save before it."""
        self.finished(wait=True)
        self._writer.start(lambda: self._save(step, write, quality), f"writing checkpoint {self.folder(step)}")

    def finished(self, *, wait: bool) -> Path | None:
        """The checkpoint completed since the last call; raises why it could not be. `wait`: up to the deadline."""
        return self._writer.outcome(wait=wait)

    def folder(self, step: int) -> Path:
        return self.root / f"global_step_{step}"

    def latest(self, *, digests: bool = False) -> Path | None:
        """The newest complete checkpoint: the one the pointer names, else the newest that verifies, with `digests` in
        every byte. Damaged ones are passed over with a warning. If all are, it is an error: to start over would throw a
        run away."""
        self._restore_replaced()
        self._sweep(REMOVED)
        damaged = None
        pointer = self.root / LATEST
        steps = (self._step_in_place(), pointed_step(pointer))
        named = [self.folder(step) for step in steps if step is not None]
        if not named and pointer.exists():
            log.warning("%s does not hold the number of a step; the newest whole checkpoint is taken", pointer)
        for folder in dict.fromkeys([*named, *reversed(self._folders())]):
            try:
                self._verify(folder, digests)
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
            return self.latest(digests=True)
        if not path:
            raise ConfigError("trainer.resume_mode=resume_path needs trainer.resume_from_path=…/global_step_N")
        folder = Path(path).expanduser()
        self._verify(folder, digests=True)
        return folder

    def _verify(self, folder: Path, digests: bool) -> None:
        with waiting("checkpoint", "the trainer", f"checking checkpoint {folder}", self.deadline_s):
            verify(folder, digests=digests)

    def _folders(self) -> list[Path]:
        found = [(int(m[1]), p) for p in self.root.glob("global_step_*") if (m := STEP_FOLDER.fullmatch(p.name))]
        return [path for _, path in sorted(found)]

    def _put_in_place(self, temporary: Path, final: Path) -> None:
        # A folder cannot be renamed over a full one, so an earlier save of the same step steps aside first.
        aside = _hidden(final, REPLACED)
        if final.exists():
            final.rename(aside)
        temporary.rename(final)
        _sync(self.root)
        _remove(aside)

    def _step_in_place(self) -> int | None:
        """The step of a save that was killed between putting its folder in place and replacing the pointer."""
        step = pointed_step(self._next)
        if step is None or _hidden(self.folder(step), WRITING).exists() or not self.folder(step).exists():
            return None
        return step

    def _settle(self) -> None:
        """Finish or remove what interrupted saves left."""
        self._restore_replaced()
        if self._step_in_place() is not None:
            self._next.replace(self.root / LATEST)
        self._next.unlink(missing_ok=True)  # before the folder by which it would count
        for aside in self.root.glob(f".global_step_*{REPLACED}"):
            _remove(aside)
        self._sweep(WRITING, REMOVED)

    def _restore_replaced(self) -> None:
        """Put back what was aside when a process was killed while one save took the place of another."""
        for aside in self.root.glob(f".global_step_*{REPLACED}"):
            final = self.root / aside.name.removeprefix(".").removesuffix(REPLACED)
            if not final.exists():
                with disk_errors(final):
                    aside.rename(final)

    def _sweep(self, *kinds: str) -> None:
        for kind in kinds:
            for left in self.root.glob(f".global_step_*{kind}"):
                shutil.rmtree(left, ignore_errors=True)

    def _prune(self, newest: int) -> None:
        if self.keep is None:
            return
        # Folders past `newest` are left by an earlier run that went further; they are not this run's to delete.
        ours = [p for p in self._folders() if step_of(p) <= newest]
        best = self.best(newest) if self.keep_best else None
        for folder in ours[: -self.keep]:
            if folder != best:
                _remove(folder)

    def best(self, newest: int) -> Path | None:
        """The checkpoint of the best quality up to the step `newest`; among equals the first. Those that were validated
        count before others."""
        ours = [path for path in self._folders() if step_of(path) <= newest]
        known = [(quality, -step_of(path), path) for path in ours if (quality := quality_of(path))]
        return max(known)[2] if known else None


def _hidden(folder: Path, kind: str) -> Path:
    return folder.with_name(f".{folder.name.removeprefix('.')}{kind}")


def _remove(folder: Path) -> None:
    """Remove a folder, if it is there; whenever the process dies, a part of it never stands under its name."""
    if folder.exists():
        removed = folder.rename(_hidden(folder, REMOVED))
        shutil.rmtree(removed, ignore_errors=True)


def quality_of(folder: Path) -> Quality | None:
    """None where the checkpoint has none, or one that is no finite number."""
    try:
        validated, value = read_json(folder / MANIFEST, CheckpointError)["quality"]
        return (bool(validated), float(value)) if math.isfinite(value) else None
    except (CheckpointError, KeyError, TypeError, ValueError, OverflowError):
        return None


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


def verify(folder: Path, *, digests: bool = True) -> None:
    """CheckpointError unless every file of the manifest is there with its size and, to compare `digests`, its bytes."""
    if not folder.is_dir():
        raise CheckpointError(f"no checkpoint at {folder}: trainer.resume_from_path should name a global_step_N folder")
    step, instead = step_of(folder), "resume from an earlier step with trainer.resume_mode=resume_path"
    manifest = check_whole(folder, f"{instead} trainer.resume_from_path=…", digests=digests)
    if manifest.get("step", step) != step:
        raise CheckpointError(
            f"{folder / MANIFEST} is of step {manifest['step']}: {folder} was renamed, or copied over another. Rename "
            "it to the number of its step"
        )


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
        ROWS: rows,
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


def changed_keys(theirs: Mapping[str, Any], config: Any, code: Mapping[str, str] | None = None) -> list[str]:
    """`key: then → now` for each key whose value, or file whose `code`, is not that of the checkpoint."""
    ours = {**key_values(config), **(code or {})}
    return [f"{name}: {theirs[name]} → {value}" for name, value in ours.items() if theirs.get(name, value) != value]


def key_values(config: Any) -> dict[str, Any]:
    """The keys of a command's configuration with their values, as they read back from JSON; without PLANNED."""
    names = [name for name in keys_of(type(config)) if not name.endswith(PLANNED)]
    values: dict[str, Any] = json.loads(json.dumps({name: read(config, name) for name in names}))
    return values


def code_digests(config: Any) -> dict[str, str]:
    """Of the Python files that keys name, such as that of the reward function: a digest of what is in them now."""
    found: dict[str, str] = {}

    def visit(value: Any) -> None:
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            visit(item)
        for part in value.split(",") if isinstance(value, str) else ():
            if (named := PYTHON_FILE.match(part.strip())) and (file := Path(named[1]).expanduser()).is_file():
                found[f"contents of {named[1]}"] = hashlib.sha256(file.read_bytes()).hexdigest()[:12]

    visit(key_values(config))
    return found


def read_state(folder: Path) -> dict[str, Any]:
    path = folder / STATE
    if not path.is_file():
        raise CheckpointError(f"{folder} is not a checkpoint of `burnish ppo`: it has no {STATE}")
    with restoring(path):
        state = read_json(path, CheckpointError)
        if missing := [name for name in PARTS if name not in state]:
            raise ValueError(f"no {', '.join(missing)} in it")
        if wrong := [name for name in PARTS if not isinstance(state[name], dict)]:
            raise ValueError(f"{wrong[0]} is a {type(state[wrong[0]]).__name__}")
        drawn = {"position": state["experience"]["position"], "drawn": state["experience"].get("drawn", 0)}
        for name, count in (drawn | state["bad_steps"]).items():
            if type(count) is not int or not 0 <= count < COUNTS:
                raise ValueError(f"{name} is no number of at least 0")
    return state


@contextlib.contextmanager
def restoring(path: Path) -> Iterator[None]:
    """A CheckpointError that names a file of the controller's state: what is read of it may be of any type."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path} is damaged ({reason}); resume from another step") from error


def has_grown(then: Mapping[str, Any], now: list[str], rows_then: int, rows_now: int) -> bool:
    """Whether training files, or rows of them, were added to those of the keys `then`: that run resumes with them.
    Without a file of its own it would be another run."""
    return rows_now > rows_then and set(then.get("data.train_files", [None])) <= set(now)


def check_same_run(folder: Path, state: Mapping[str, Any], ours: Mapping[str, Any], files: list[str]) -> None:
    """CheckpointError unless a run with these facts and training files continues the one of a saved `state`."""
    theirs, ours = state["run"], json.loads(json.dumps(ours))  # as it would be read back
    for name, value in ours.items():
        if name not in theirs or theirs[name] == value:
            continue
        if name == ROWS and has_grown(state["config"], files, theirs[name], value):
            log.warning("changed since that checkpoint: %s: %d → %d, drawn in another order", name, theirs[name], value)
            continue
        if name in (MODEL, PROCESS_REWARD):
            raise CheckpointError(
                f"{folder} is a checkpoint of another model: the weights at {name} are not those its run started "
                f"from. Name that model again, or start another run with {OTHER_RUN}"
            )
        raise CheckpointError(
            f"{folder} was saved with {name}={theirs[name]}, and this run has {value}: it would continue with other "
            f"prompts. Set it back, or start another run from its weights with {MODEL}={folder} {OTHER_RUN}"
        )
