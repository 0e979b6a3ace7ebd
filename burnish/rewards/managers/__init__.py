"""Reward managers: put the scores of a batch on its tokens (`reward_model.reward_manager`).

A manager is constructed as `cls(tokenizer=, num_examine=, compute_score=, reward_fn_key=)` and called as
`manager(data, return_dict=False)`; it gives the reward tensor (B, R), or with `return_dict` a dict of `reward_tensor`
and `reward_extra_info` (lists of B values). A user's class has the same shape and is named by import path
(`package.module:Class`, `my_manager.py:Class`) or by `reward_manager.source=importlib` and `reward_manager.module.*`.

A class with `takes_results = True` reads the `score_result` column, so its samples are scored as each trajectory
finishes. Any other class calls `compute_score` itself, later.
"""

import difflib
import importlib
import inspect
from typing import TYPE_CHECKING, Any

from burnish.errors import ConfigError, NotAvailable
from burnish.rewards.loading import load_object

if TYPE_CHECKING:
    from burnish.config.ppo import PPOConfig
    from burnish.rewards.scoring import Scoring

#: name → module and class; None: known, not built yet.
MANAGERS: dict[str, tuple[str, str] | None] = {
    "naive": ("burnish.rewards.managers.naive", "NaiveRewardManager"),
    "batch": None,
    "prime": None,
    "dapo": None,
}


def load_manager(config: "PPOConfig", tokenizer: Any, num_examine: int, scoring: "Scoring") -> Any:
    """The manager that the configuration names, constructed."""
    cls, key = find_manager(config)
    arguments = {
        "tokenizer": tokenizer,
        "num_examine": num_examine,
        "compute_score": scoring,
        "reward_fn_key": config.data.reward_fn_key,
    }
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"{key}: {cls.__name__} cannot be constructed with {', '.join(arguments)} ({error}); "
            "write __init__(self, tokenizer, num_examine, compute_score, reward_fn_key, **kwargs)"
        ) from None
    return cls(**arguments)


def find_manager(config: "PPOConfig") -> tuple[Any, str]:
    """(class, the key and value that named it)."""
    chosen = config.reward_manager
    if chosen.source == "importlib":
        name = chosen.module.name or chosen.name
        if not chosen.module.path or not name:
            raise ConfigError("reward_manager.source=importlib needs reward_manager.module.path and .module.name")
        keys = ("reward_manager.module.path", "reward_manager.module.name")
        return load_object(chosen.module.path, name, *keys), f"{keys[1]}={name}"
    name = chosen.name or config.reward_model.reward_manager
    chosen_by = "reward_manager.name" if chosen.name else "reward_model.reward_manager"
    key = f"{chosen_by}={name}"
    if name in MANAGERS:
        return _built_in(name, key), key
    path, _, cls = name.rpartition(":") if ":" in name else name.rpartition(".")
    if not path or name.endswith(".py"):
        near = difflib.get_close_matches(name, MANAGERS, n=1)
        raise ConfigError(
            f"{key}: no such manager{f'; did you mean {near[0]}?' if near else ''} (known: {', '.join(MANAGERS)}; "
            "your own: package.module:Class or my_manager.py:Class)"
        )
    return load_object(path, cls, chosen_by, chosen_by), key


def _built_in(name: str, key: str) -> Any:
    place = MANAGERS[name]
    if place is None:
        built = [known for known, where in MANAGERS.items() if where]
        raise NotAvailable(key, f"Managers that are there: {', '.join(built)}")
    return getattr(importlib.import_module(place[0]), place[1])
