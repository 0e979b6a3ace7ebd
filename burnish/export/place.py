"""The folder of an export: what may be in it, and that it is there whole or not at all.

`new_folder` works in a locked folder next to `--out`, `.NAME.exporting`. What it replaces is moved there, from where
the next export puts it back should the process be killed between the two renames.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from burnish.errors import CheckpointError, ConfigError
from burnish.models.adapters import ADAPTER_WEIGHTS
from burnish.models.folder import ADAPTER_CONFIG, INDEX, TOKENIZER_FILES
from burnish.tracking.lock import FolderLock

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MODEL_FILES = ("config.json", ADAPTER_CONFIG)
TOKENIZER_EXTRAS = (
    "added_tokens.json", "special_tokens_map.json", "merges.txt", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
NAMED_TEMPLATES = "additional_chat_templates"
# What an export writes; --overwrite removes nothing else.
WRITTEN = (
    *MODEL_FILES, *TOKENIZER_FILES, *TOKENIZER_EXTRAS, f"{NAMED_TEMPLATES}/*.jinja", "*.model", "*.tiktoken",
    "generation_config.json", "model.safetensors", "model-?????-of-?????.safetensors", INDEX, ADAPTER_WEIGHTS,
    "configuration_*.py", "modeling_*.py", "tokenization_*.py",
)  # fmt: skip


def check_out(out: Path, *, overwrite: bool) -> Path:
    """The full path of `out`, where an export may appear: a ConfigError says why not."""
    out = out.expanduser().resolve()
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; name a folder")
    if out.is_dir() and any(out.iterdir()):
        if not overwrite:
            raise ConfigError(f"--out {out} exists and is not empty; name a new folder, or replace it with --overwrite")
        # --overwrite removes a folder with all that is in it, so it has to be an export and no more.
        if not any((out / name).is_file() for name in MODEL_FILES):
            raise ConfigError(f"--out {out} is not replaced: it is not a model folder; name another folder")
        inside = (path.relative_to(out).as_posix() for path in out.rglob("*") if path != out / NAMED_TEMPLATES)
        for name in sorted(inside):
            if not any(name.count("/") == p.count("/") and fnmatch(name, p) for p in WRITTEN):
                raise ConfigError(
                    f"--out {out} is not replaced: it holds {name}, which no export writes; move that away, or name "
                    "another folder"
                )
    return out


def check_apart(out: Path, folders: Iterable[Path]) -> None:
    for folder in folders:
        if out == folder or out in folder.parents or folder in out.parents:
            relation = "is" if out == folder else "is inside" if folder in out.parents else "holds"
            raise ConfigError(f"--out {out} {relation} the source {folder}; choose a folder outside of it")


@contextlib.contextmanager
def new_folder(out: Path, needed: int, *, overwrite: bool) -> Iterator[Path]:
    """A folder to write to; `out` once the block has ended well. `needed` bytes must be free."""
    workshop = out.with_name(f".{out.name}.exporting")
    new, replaced = workshop / "new", workshop / "replaced"
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out.parent).free
        if needed > free:
            raise CheckpointError(
                f"--out {out} needs {as_size(needed)}, and {as_size(free)} are free there; free some space, or name a "
                "folder on another disk"
            )
    lock = FolderLock(workshop, ("--out",), out)
    lock.take()
    try:
        with writing(out):
            _settle(new, replaced, out)
            check_out(out, overwrite=overwrite)
            new.mkdir()
        yield new
        with writing(out):
            _finish(new)
            if check_out(out, overwrite=overwrite).exists():  # again, because an export takes a while
                out.rename(replaced)
            new.rename(out)
    finally:
        _settle(new, replaced, out)
        lock.release()
        with contextlib.suppress(OSError):  # another export is in it already
            workshop.rmdir()


@contextlib.contextmanager
def writing(out: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:  # safetensors wraps the system's error in its own
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"cannot write {out}: {reason}. Nothing was put there; free some space or name another folder with --out"
        ) from error


def copy_tokenizer(source: Path, tokenizer: "PreTrainedTokenizerBase", folder: Path) -> None:
    """The tokenizer's files and chat templates byte by byte: writing it again could change what it does elsewhere."""
    names = {*TOKENIZER_FILES, *TOKENIZER_EXTRAS, *tokenizer.vocab_files_names.values()}
    for name in sorted(names):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)  # what a link leads to, not the link
    for file in sorted((source / NAMED_TEMPLATES).glob("*.jinja")):
        (folder / NAMED_TEMPLATES).mkdir(exist_ok=True)
        shutil.copyfile(file, folder / NAMED_TEMPLATES / file.name)


def as_size(count: int) -> str:
    for unit, width in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= width:
            return f"{count / width:.1f} {unit}"
    return f"{count} bytes"


def _settle(new: Path, replaced: Path, out: Path) -> None:
    """Remove what is half done; what was moved aside comes back where nothing took its place."""
    if replaced.exists() and not out.exists():
        replaced.rename(out)
    for folder in (new, replaced):
        shutil.rmtree(folder, ignore_errors=True)


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
