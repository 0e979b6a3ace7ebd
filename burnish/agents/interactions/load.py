"""The interactions of a run, by name: the built-in ones, and those of `multi_turn.interaction_config_path`.

The YAML file has `interaction: [{name, class_name, config}]`. `class_name` is `package.module.Class` or
`file.py:Class`, looked for as in targets.py; without it the entry is the built-in one of that name with another
`config`. An entry may take the place of a built-in one.
"""

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from burnish.agents.interactions.base import BaseInteraction
from burnish.agents.interactions.gsm8k import Gsm8kInteraction
from burnish.agents.targets import load_beside
from burnish.errors import ConfigError
from burnish.user_code import listed, nearest, user_traceback

KEY = "actor_rollout_ref.rollout.multi_turn.interaction_config_path"
BUILT_IN: dict[str, type[BaseInteraction]] = {"gsm8k": Gsm8kInteraction}
KEYS = ("name", "class_name", "config")


def load_interactions(path: str | None) -> dict[str, BaseInteraction]:
    """All interactions that a row may name; the built-in ones alone where there is no file."""
    found: dict[str, BaseInteraction] = {}
    for position, entry in enumerate(_entries(Path(path).expanduser()) if path else []):
        where = f"{KEY}={path}, entry {position}"
        name = _checked_name(entry, where)
        if name in found:
            raise ConfigError(f"{where}: there is another entry named {name}; give each its own name")
        found[name] = _made(name, entry, Path(str(path)).expanduser().parent, f"{where} ({name})")
    return {name: cls({}) for name, cls in BUILT_IN.items()} | found


def _entries(file: Path) -> list[Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{KEY}={file}: cannot be read ({error})") from error
    entries = content.get("interaction") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{KEY}={file}: expected `interaction:` and a list of entries with name and class_name")
    return entries


def _checked_name(entry: Any, where: str) -> str:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        raise ConfigError(f"{where}: an entry needs a name and a class_name, got {entry!r:.200}")
    for key in entry:
        if key not in KEYS:
            raise ConfigError(f"{where}: unknown key {key}; an entry has {listed(KEYS)}{nearest(str(key), KEYS)}")
    return entry["name"]


def _made(name: str, entry: dict[str, Any], folder: Path, where: str) -> BaseInteraction:
    config = entry.get("config") or {}
    if not isinstance(config, dict):
        raise ConfigError(f"{where}: config={config!r:.100} is not a mapping; write keys and values below it")
    cls = _found_class(name, entry.get("class_name"), folder, where)
    try:
        return cls(config)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except (Exception, SystemExit):  # noqa: BLE001  whatever a user's class raises is the user's to mend
        raise ConfigError(f"{where}: making it with config={config} failed\n{user_traceback()}") from None


def _found_class(name: str, target: Any, folder: Path, where: str) -> type[BaseInteraction]:
    if target is None and name in BUILT_IN:
        return BUILT_IN[name]
    if not isinstance(target, str):
        raise ConfigError(
            f"{where}: class_name is missing or not text; write package.module.Class or file.py:Class "
            f"(the built-in interactions that need none are {listed(BUILT_IN)})"
        )
    cls = load_beside(target, folder, f"{where}: class_name")
    if not isinstance(cls, type) or not issubclass(cls, BaseInteraction):
        raise ConfigError(f"{where}: class_name={target}: {cls!r} is not a subclass of BaseInteraction")
    return cls
