"""Reward managers: put the scores of a batch on its tokens (`reward_model.reward_manager`).

A manager is constructed as `cls(tokenizer=, num_examine=, compute_score=, reward_fn_key=)` and called as
`manager(data, return_dict=False)`; it gives the reward tensor (B, R), or with `return_dict` a dict of `reward_tensor`
and `reward_extra_info` (lists of B values; those under `new_prompts` are lists of rows to train on, not metrics). A
user's class has the same shape and is named by import path (`package.module:Class`, `my_manager.py:Class`) or by
`reward_manager.source=importlib` and `reward_manager.module.*`.

The managers differ only in how the function is called; the scores are the same.
- `naive` calls it for one sample at a time, in `reward.num_workers` processes.
- `prime` is naive with more processes and a longer time limit (`config/rules/scoring.py`), for slow checks.
- `dapo` is another name for `naive`: its penalty for responses near the length limit is `algorithm.overlong_buffer`,
  which works with every manager.
- `batch` calls a function that takes lists once, with all samples. A function in that form needs a manager with
  `takes_batches = True`.

How a step uses one:
- A class with `takes_results = True` also has `score(data) -> list[ScoreResult]`, one result per row: the one in the
  column `score_result` if that is not None, else a new one. The trainer calls `score`; drops the rows
  that could not be scored, as `failures.apply_policy` says; writes the results of the others into the column; and calls
  the manager with those rows, to place the scores. If its `compute_score` is the configured function, and one that
  takes single samples (`Scoring.one_by_one`), they are scored as each trajectory finishes, and `score` finds all of
  them in the column.
- Any other class is only called, with all rows, and computes its scores itself. A reward that an agent
  loop gave is in `score_result`, which is None elsewhere.
"""

import difflib
import importlib
import inspect
from typing import TYPE_CHECKING, Any

from burnish.config.reward import RewardManagerConfig
from burnish.errors import ConfigError
from burnish.rewards.function import NEEDS_BATCH
from burnish.rewards.managers.protocol import RewardManager, adapt_manager
from burnish.rewards.scoring import Scoring
from burnish.user_code import load_object, load_target

if TYPE_CHECKING:
    from burnish.config.ppo import PPOConfig

_NAIVE = ("burnish.rewards.managers.naive", "NaiveRewardManager")
#: name → module and class.
MANAGERS: dict[str, tuple[str, str]] = {
    "naive": _NAIVE,
    "batch": ("burnish.rewards.managers.batch", "BatchRewardManager"),
    "prime": _NAIVE,
    "dapo": _NAIVE,
}


def load_manager(config: "PPOConfig", tokenizer: Any, num_examine: int, scoring: Scoring) -> RewardManager:
    """The manager that the configuration names, constructed and, if it is a user's, adapted."""
    cls, key = find_manager(config.reward_manager, config.reward_model.reward_manager)
    arguments = {
        "tokenizer": tokenizer,
        "num_examine": num_examine,
        "compute_score": scoring,
        "reward_fn_key": config.data.reward_fn_key,
    }
    if not scoring.one_by_one and not getattr(cls, "takes_batches", False):
        raise ConfigError(f"{scoring.spec.key}, with {key}: {NEEDS_BATCH}")
    if getattr(cls, "takes_results", False) and not callable(getattr(cls, "score", None)):
        raise ConfigError(
            f"{key}: {cls.__name__} has takes_results = True but no method score(data) -> list[ScoreResult]; "
            "write one, or drop takes_results"
        )
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"{key}: {cls.__name__} cannot be constructed with {', '.join(arguments)} ({error}); "
            "write __init__(self, tokenizer, num_examine, compute_score, reward_fn_key, **kwargs)"
        ) from None
    return adapt_manager(cls(**arguments))


def find_manager(chosen: RewardManagerConfig, default: str) -> tuple[Any, str]:
    """(class, the key and value that named it): `reward_manager`, or else `reward_model.reward_manager` (`default`)."""
    if chosen.source == "importlib":
        name, keys = chosen.module.name or chosen.name, ("reward_manager.module.path", "reward_manager.module.name")
        return load_object(chosen.module.path, name, *keys), f"{keys[1]}={name}"
    name = chosen.name or default
    chosen_by = "reward_manager.name" if chosen.name else "reward_model.reward_manager"
    key = f"{chosen_by}={name}"
    if name in MANAGERS:
        module, cls = MANAGERS[name]
        return getattr(importlib.import_module(module), cls), key
    if ":" not in name and "." not in name:
        near = difflib.get_close_matches(name, MANAGERS, n=1)
        raise ConfigError(
            f"{key}: no such manager{f'; did you mean {near[0]}?' if near else ''} (known: {', '.join(MANAGERS)}; "
            "your own: package.module:Class or my_manager.py:Class)"
        )
    return load_target(name, chosen_by), key
