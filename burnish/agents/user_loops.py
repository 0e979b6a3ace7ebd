"""Loops named in the YAML file of `rollout.agent.agent_loop_config_path`.

The file is a list of entries `{name: my_agent, _target_: package.module.MyAgent}`, or with `_target_: file.py:MyAgent`;
a relative file is looked for beside the YAML file, then in the working directory. Other keys of an entry go to the
class's constructor.
"""

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from burnish.agents.base import AgentLoopBase, register_agent_loop
from burnish.errors import AgentError, ConfigError

KEY = "actor_rollout_ref.rollout.agent.agent_loop_config_path"


def load_user_loops(path: str | Path) -> dict[str, Callable[..., AgentLoopBase]]:
    """Import and register every loop of the file; by name, what makes one."""
    file = Path(path).expanduser()
    try:
        entries = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{KEY}={path}: cannot be read ({error})") from error
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{KEY}={path}: expected a list of entries with name and _target_")
    return dict(_load_entry(entry, i, file) for i, entry in enumerate(entries))


def _load_entry(entry: Any, position: int, file: Path) -> tuple[str, Callable[..., AgentLoopBase]]:
    where = f"{KEY}={file}, entry {position}"
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ConfigError(f"{where}: an entry needs a name and a _target_, got {entry!r}")
    name, target = entry["name"], entry.get("_target_")
    if not isinstance(target, str):
        raise ConfigError(f"{where} ({name}): _target_ is missing; write package.module.Class or file.py:Class")
    try:
        cls = _import_class(target, file.parent)
        register_agent_loop(name, cls)
    except (ImportError, AttributeError, OSError, SyntaxError, ValueError, AgentError) as error:
        raise ConfigError(f"{where} ({name}): _target_={target}: {error}") from error
    arguments = {key: value for key, value in entry.items() if key not in ("name", "_target_")}
    return name, partial(cls, **arguments) if arguments else cls


def _import_class(target: str, folder: Path) -> Any:
    if ".py:" in target:
        file_name, _, class_name = target.rpartition(":")
        return getattr(_import_file(Path(file_name).expanduser(), folder), class_name)
    module_name, _, class_name = target.rpartition(".")
    if not module_name:
        raise ValueError("expected package.module.Class or file.py:Class")
    return getattr(importlib.import_module(module_name), class_name)


def _import_file(file: Path, folder: Path) -> Any:
    found = next((place for place in (folder / file, file) if place.is_file()), None)
    if found is None:
        raise FileNotFoundError(f"there is no file {file} in {folder.absolute()} or the working directory")
    name = f"burnish_user_{found.resolve().as_posix().strip('/').replace('/', '_').removesuffix('.py')}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, found)
    assert spec is not None and spec.loader is not None  # a .py file always has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # a half-run module must not be found next time
        raise
    return module
