"""The interactions of a run, by name: the built-in ones, and those of `multi_turn.interaction_config_path`.

The YAML file has `interaction: [{name, class_name, config}]`. `class_name` is looked for as in targets.py; without it
the entry is the built-in one of that name with another `config`. Without a `name`, MyInteraction is `my`. An entry may
replace a built-in one.
"""

import re
from functools import partial
from pathlib import Path

from burnish.agents.interactions import BaseInteraction
from burnish.agents.interactions.gsm8k import Gsm8kInteraction
from burnish.agents.targets import check_keys, load_from_folder, made, read_yaml
from burnish.errors import ConfigError
from burnish.user_code import listed

KEY = "actor_rollout_ref.rollout.multi_turn.interaction_config_path"
BUILT_IN: dict[str, type[BaseInteraction]] = {"gsm8k": Gsm8kInteraction}


def load_interactions(path: str | None) -> dict[str, BaseInteraction]:
    """All interactions that a row may name; only the built-in ones without a file."""
    found: dict[str, BaseInteraction] = {}
    content = read_yaml(path, KEY) if path else {"interaction": []}
    entries = content.get("interaction") if isinstance(content, dict) else None
    if not isinstance(entries, list) or (path and not entries):
        raise ConfigError(f"{KEY}={path}: expected `interaction:` and a list of entries with name and class_name")
    for position, entry in enumerate(entries):
        where = f"{KEY}={path}, entry {position}"
        if isinstance(entry, dict) and "name" not in entry and isinstance(entry.get("class_name"), str):
            cls_name = re.split(r"[.:]", entry["class_name"])[-1]
            entry = {"name": cls_name.removesuffix("Interaction").lower(), **entry}
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
            raise ConfigError(f"{where}: an entry needs a name and a class_name, got {entry!r:.200}")
        check_keys(entry, ("name", "class_name", "config"), where)
        name = entry["name"]
        if name in found:
            raise ConfigError(f"{where}: there is another entry named {name}; give each its own name")
        where = f"{where} ({name})"
        config, target = entry.get("config") or {}, entry.get("class_name")
        if not isinstance(config, dict):
            raise ConfigError(f"{where}: config={config!r:.100} is not a mapping; write keys and values below it")
        if not isinstance(target, str) and (target is not None or name not in BUILT_IN):
            raise ConfigError(
                f"{where}: class_name is missing or not text; write package.module.Class or file.py:Class "
                f"(the built-in interactions that need none are {listed(BUILT_IN)})"
            )
        folder = Path(str(path)).expanduser().parent
        cls = BUILT_IN[name] if target is None else load_from_folder(target, folder, f"{where}: class_name")
        if not isinstance(cls, type) or not issubclass(cls, BaseInteraction):
            raise ConfigError(f"{where}: class_name={target}: {cls!r} is not a subclass of BaseInteraction")
        found[name] = made(partial(cls, config), where, f"making it with config={config} failed")
    return {name: cls({}) for name, cls in BUILT_IN.items()} | found
