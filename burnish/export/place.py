"""The folder of an export: it is there whole, or not at all.

`new_folder` gives a temporary folder beside `--out`, `.NAME.exporting`, which takes its name when the block ends well
and is removed otherwise. A lock on it keeps two exports apart; one that a killed export left is emptied and used again.
"""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from safetensors import SafetensorError

from burnish.errors import CheckpointError, ConfigError
from burnish.models.folder import LATEST
from burnish.tracking.lock import UNSUPPORTED

MODEL_FILES = ("config.json", "adapter_config.json")
TRAINING_FILES = (LATEST, "manifest.json", "engine.json")


def check_out(out: Path, *, overwrite: bool) -> Path:
    """The full path of `out`, where an export may appear: a ConfigError says why not."""
    out = out.expanduser().resolve()
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; name a folder")
    if out.is_dir() and any(out.iterdir()):
        if not overwrite:
            raise ConfigError(f"--out {out} is there and not empty; name a new folder, or replace it with --overwrite")
        _check_replaceable(out)
    return out


def check_apart(out: Path, folders: Iterable[Path]) -> None:
    """ConfigError unless `out` is outside of all `folders`, and they of it."""
    for folder in folders:
        if out == folder or out in folder.parents or folder in out.parents:
            relation = "is" if out == folder else "lies inside" if folder in out.parents else "holds"
            raise ConfigError(f"--out {out} {relation} the source {folder}; choose a folder outside of it")


@contextlib.contextmanager
def new_folder(out: Path, needed: int, *, overwrite: bool) -> Iterator[Path]:
    """A folder to write to; `out` once the block has ended well. `needed` bytes must be free."""
    folder = out.with_name(f".{out.name}.exporting")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out.parent).free
        if needed > free:
            raise CheckpointError(
                f"--out {out} needs {as_size(needed)}, and {as_size(free)} are free there; free some space, or name a "
                "folder on another disk"
            )
        lock = _claim(folder, out)
    try:
        yield folder
        with writing(out):
            _finish(folder)
            _put_in_place(folder, out, overwrite)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # not there where all went well
        os.close(lock)


@contextlib.contextmanager
def writing(out: Path) -> Iterator[None]:
    """What a disk says while `out` is written, as a CheckpointError."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # safetensors wraps the system's error in its own
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"cannot write {out}: {reason}. Nothing was put there; free some space or name another folder with --out"
        ) from error


def as_size(count: int) -> str:
    for unit, width in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= width:
            return f"{count / width:.1f} {unit}"
    return f"{count} bytes"


def _check_replaceable(out: Path) -> None:
    """--overwrite removes a folder with all that is in it, so it has to be a model and no more."""
    inside = {path.name for path in out.iterdir()}
    training = [name for name in inside if name in TRAINING_FILES or name.startswith("global_step_")]
    if training or not inside & set(MODEL_FILES):
        what = f"it holds {training[0]}, so it belongs to a training run" if training else "it is not a model folder"
        raise ConfigError(f"--out {out} is not replaced: {what}; name another folder")


def _claim(folder: Path, out: Path) -> int:
    """Make the temporary folder, empty and locked; returns the open lock."""
    folder.mkdir(exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = os.path.samestat(os.fstat(lock), os.stat(folder))
    except (BlockingIOError, FileNotFoundError):  # held by another export, or just put in place by it
        mine = False
    except OSError as error:
        mine = error.errno in (
            errno.EBADF,
            *UNSUPPORTED,
        )  # no locks here: two exports at a time are the user's to avoid
    if not mine:
        os.close(lock)
        raise ConfigError(f"--out {out}: another export is writing there; wait for it, or name another folder")
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return lock


def _finish(folder: Path) -> None:
    """Modes as the umask asks for (safetensors makes files for their owner alone), and all of it on the disk."""
    umask = os.umask(0)
    os.umask(umask)
    for path in [*folder.rglob("*"), folder]:
        if path.is_file():
            path.chmod(0o666 & ~umask)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _put_in_place(folder: Path, out: Path, overwrite: bool) -> None:
    if not overwrite or not out.exists():
        folder.rename(out)  # over nothing or an empty folder
        return
    aside = out.with_name(f".{out.name}.replaced")
    shutil.rmtree(aside, ignore_errors=True)
    out.rename(aside)
    try:
        folder.rename(out)
    except OSError:
        aside.rename(out)
        raise
    shutil.rmtree(aside)
