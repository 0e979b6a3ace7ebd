"""Loops named in the YAML file of `rollout.agent.agent_loop_config_path`.

The file is a list of entries `{name: my_agent, _target_: package.module.MyAgent}`, or with `_target_: file.py:MyAgent`
(user_code.py has all forms); a relative file is looked for next to the YAML file, then in the working directory.
Other keys of an entry go to the class's constructor. A class that has a method `check_entry(arguments, folder)` says
with it, by a ConfigError, what is wrong with them.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from burnish.agents.base import AgentLoopBase, find_loop, register_agent_loop
from burnish.agents.targets import load_beside, read_yaml
from burnish.config.rollout import AgentConfig
from burnish.errors import AgentError, ConfigError

SECTION = "actor_rollout_ref.rollout.agent"
KEY = f"{SECTION}.agent_loop_config_path"


def check_names(names: Iterable[str], agent: AgentConfig, key: str = "agent_name") -> None:
    """ConfigError where there is no loop of one of these names, which `key` gave."""
    own = user_loops(agent)
    for name in names:
        if name not in own:
            find_loop(name, key)


def user_loops(agent: AgentConfig) -> dict[str, Callable[..., AgentLoopBase]]:
    """What makes the loops of the configured file, by name; none where there is no file."""
    return load_user_loops(agent.agent_loop_config_path) if agent.agent_loop_config_path else {}


def load_user_loops(path: str | Path) -> dict[str, Callable[..., AgentLoopBase]]:
    """Import and register every loop of the file; by name, what makes one."""
    file = Path(path).expanduser()
    entries = read_yaml(path, KEY)
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
    cls = load_beside(target, file.parent, f"{where} ({name}): _target_")
    try:
        register_agent_loop(name, cls)
    except AgentError as error:
        raise ConfigError(f"{where} ({name}): _target_={target}: {error}") from error
    arguments = {key: value for key, value in entry.items() if key not in ("name", "_target_")}
    _check_arguments(cls, arguments, file.parent, f"{where} ({name})")
    return name, partial(cls, **arguments) if arguments else cls


def _check_arguments(cls: Any, arguments: dict[str, Any], folder: Path, where: str) -> None:
    """Checked now rather than by the first trajectory, when a model is loaded."""
    parts = dict.fromkeys(("config", "server_manager", "tokenizer", "chat"))
    try:
        inspect.signature(cls).bind(**parts, **arguments)
    except TypeError as error:
        raise ConfigError(f"{where}: {cls.__name__} cannot be made with the keys of the entry: {error}") from error
    if hasattr(cls, "check_entry"):
        try:
            cls.check_entry(arguments, folder)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
