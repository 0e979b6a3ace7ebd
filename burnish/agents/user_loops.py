"""Loops named in the YAML file of `rollout.agent.agent_loop_config_path`: `{name: mine, _target_: package.MyAgent}`.

Other keys of an entry go to the class's constructor. A class that has a method `check_entry(arguments, folder)` says
with it, by a ConfigError, what is wrong with them.
"""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from burnish.agents.base import AgentLoopBase, find_loop, register_agent_loop
from burnish.agents.targets import load_beside, read_yaml
from burnish.config.rollout import AgentConfig
from burnish.errors import AgentError, ConfigError

SECTION = "actor_rollout_ref.rollout.agent"
KEY = f"{SECTION}.agent_loop_config_path"


def check_name(name: str, agent: AgentConfig, key: str = "agent_name") -> None:
    """ConfigError where there is no loop of this name, which `key` gave."""
    if name not in user_loops(agent):
        find_loop(name, key)


def user_loops(agent: AgentConfig) -> dict[str, Callable[..., AgentLoopBase]]:
    """Import and register every loop of the configured file; by name, what makes one. None where there is no file."""
    path = agent.agent_loop_config_path
    if not path:
        return {}
    entries = read_yaml(path, KEY)
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{KEY}={path}: expected a list of entries with name and _target_")
    return dict(_load_entry(entry, i, Path(path).expanduser()) for i, entry in enumerate(entries))


def _load_entry(entry: Any, position: int, file: Path) -> tuple[str, Callable[..., AgentLoopBase]]:
    where = f"{KEY}={file}, entry {position}"
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ConfigError(f"{where}: an entry needs a name and a _target_, got {entry!r}")
    name, target = entry["name"], entry.get("_target_")
    if not isinstance(target, str):
        raise ConfigError(f"{where} ({name}): _target_ is missing; write package.module.Class or file.py:Class")
    cls = load_beside(target, file.parent, f"{where} ({name}): _target_")
    try:
        register_agent_loop(name, cls)
    except AgentError as error:
        raise ConfigError(f"{where} ({name}): _target_={target}: {error}") from error
    arguments = {key: value for key, value in entry.items() if key not in ("name", "_target_")}
    # Checked now rather than by the first trajectory, when a model is loaded.
    parts = dict.fromkeys(("config", "server_manager", "tokenizer", "chat"))
    try:
        inspect.signature(cls).bind(**parts, **arguments)
    except TypeError as error:
        problem = f"{cls.__name__} cannot be made with the keys of the entry: {error}"
        raise ConfigError(f"{where} ({name}): {problem}") from error
    try:
        if hasattr(cls, "check_entry"):
            cls.check_entry(arguments, file.parent)
    except ConfigError as error:
        raise ConfigError(f"{where} ({name}): {error}") from error
    return name, partial(cls, **arguments) if arguments else cls
