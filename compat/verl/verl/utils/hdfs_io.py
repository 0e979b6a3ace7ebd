"""Files of mounted folders, for scripts that prepare data."""

import shutil
from pathlib import Path

from verl.utils.fs import copy_to_local


def exists(path: str) -> bool:
    return Path(copy_to_local(path)).exists()


def makedirs(name: str, mode: int = 0o777, exist_ok: bool = True) -> None:
    Path(copy_to_local(name)).mkdir(mode, parents=True, exist_ok=exist_ok)


def copy(src: str, dst: str) -> bool:
    """A file or a folder."""
    source, target = Path(copy_to_local(src)), Path(copy_to_local(dst))
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)
    return True
