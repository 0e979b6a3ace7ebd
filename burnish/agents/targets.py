"""YAML files of loops, tools and interactions, and the code that they name: `package.module.Class` or `file.py:Class`
(user_code.py has all forms). A relative file is looked for next to the YAML file, then in the working directory.

A class written for another framework's contract has a class method `burnish_class`, which gives the class that is made
in its place (`compat/verl`)."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml  # type: ignore[import-untyped]

from burnish.errors import ConfigError
from burnish.user_code import load_target, nearest, user_traceback

T = TypeVar("T")


def read_yaml(path: str | Path, key: str) -> Any:
    try:
        return yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{key}={path}: cannot be read ({error})") from error


def load_from_folder(target: str, folder: Path, key: str) -> Any:
    """The callable that a YAML file in `folder` names; `key` says where in it."""
    file, colon, name = target.rpartition(":")
    if file.endswith(".py"):
        path = Path(file).expanduser()
        place = next((place for place in (folder / path, path) if place.is_file()), None)
        if place is None:
            raise ConfigError(
                f"{key}={target}: there is no file {file} in {folder.absolute()} or the working directory"
            )
        target = f"{place}{colon}{name}"
    found = load_target(target, key)
    return found.burnish_class() if hasattr(found, "burnish_class") else found


def check_keys(given: Iterable[Any], known: Sequence[str], where: str) -> None:
    for key in given:
        if key not in known:
            near = nearest(str(key), known)
            raise ConfigError(f"{where}: unknown key {key!r:.50}; it has {', '.join(known)}{near}")


def made(make: Callable[[], T], where: str, failed: str) -> T:
    """What a user's class makes; a ConfigError with its traceback for whatever it raises."""
    try:
        return make()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except (Exception, SystemExit):  # noqa: BLE001  a user's class may raise anything
        raise ConfigError(f"{where}: {failed}\n{user_traceback()}") from None
