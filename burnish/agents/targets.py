"""Code that a YAML file names: `package.module.Class` or `file.py:Class` (user_code.py has all forms).

A relative file is looked for beside the YAML file, then in the working directory.
"""

from pathlib import Path
from typing import Any

from burnish.errors import ConfigError
from burnish.user_code import load_target


def load_beside(target: str, folder: Path, key: str) -> Any:
    """The callable that a YAML file in `folder` names; `key` says where in it."""
    file, colon, name = target.rpartition(":")
    if not file.endswith(".py"):
        return load_target(target, key)
    path = Path(file).expanduser()
    found = next((place for place in (folder / path, path) if place.is_file()), None)
    if found is None:
        raise ConfigError(f"{key}={target}: there is no file {file} in {folder.absolute()} or the working directory")
    return load_target(f"{found}{colon}{name}", key)
