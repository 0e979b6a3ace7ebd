"""Writing to disk: atomic text files, JSON lines that always parse, and errors that name the fix."""

import contextlib
import errno
import math
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from burnish.errors import CheckpointError
from burnish.literal import json_text

RUN_FOLDER = "trainer.default_local_dir"
OTHER_RUN = f"trainer.experiment_name=<another name> (or {RUN_FOLDER}, if that is set)"  # the fix for a folder in use
FIXES = {
    errno.ENOSPC: "the disk is full: free some space, or name a place on another disk with {key}",
    errno.EDQUOT: "the disk quota is used up: free some space, or name another place with {key}",
    errno.EROFS: "the file system is read-only: name a writable place with {key}",
    errno.EACCES: "no permission to write there: name a writable place with {key}",
    errno.EPERM: "no permission to write there: name a writable place with {key}",
    errno.ENOTDIR: "part of the path is a file, not a folder: name another place with {key}",
    errno.EEXIST: "the path is a file, not a folder: name another place with {key}",
}


def disk_problem(error: OSError, key: str = RUN_FOLDER) -> str:
    """What went wrong and how to fix it, in words; `key` is what the user names the place with."""
    advice = FIXES.get(error.errno or 0)
    return advice.format(key=key) if advice else f"{error.strerror or error}: name another place with {key}"


def write_atomically(path: Path, chunks: Iterable[str], key: str = RUN_FOLDER) -> None:
    """Write a text file so that a reader sees the old one or the new one, whole, whenever the process dies.
    CheckpointError where it cannot be written; it names `key`."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A lone surrogate in a sample's text has no UTF-8 form; its backslash form is the one JSON knows.
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {disk_problem(error, key)}") from error
    finally:
        with contextlib.suppress(OSError):  # it is there only where the writing failed
            temporary.unlink(missing_ok=True)


def json_line(record: Mapping[str, Any]) -> str:
    """One line of a .jsonl file. NaN and infinities, which JSON lacks, become the strings 'nan', 'inf', '-inf'."""
    return json_text(plain(record), allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """The JSON form of a value: numpy and torch numbers and arrays become Python ones, anything else its text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return list(value) if is_plain(value) else [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch, without importing either
        found = value.tolist()
        return plain(found) if type(found) is not type(value) else str(value)  # a long double
    return str(value)


def is_plain(values: Collection[Any]) -> bool:
    """Whether all are finite numbers of Python's own: known at once for the thousands that a sample has."""
    kinds = set(map(type, values))
    return kinds <= {int} or (kinds <= {float} and math.isfinite(sum(values)))
