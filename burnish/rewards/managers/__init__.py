"""Reward managers: put the scores of a batch on its tokens (`reward_model.reward_manager`; docs/rewards.md).

`prime` is `naive` with more processes and a longer time limit (`config/rules/scoring.py`), `dapo` another name for it;
a function that takes lists needs `takes_batches = True`. Of a class with `takes_results = True` the trainer calls
`score`, drops the rows that could not be scored, writes the results of the others into the column `score_result`, and
calls the manager with those rows; any other class is only called, with all rows, and computes its scores itself.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from burnish.config.reward import RewardManagerConfig, RewardModelConfig
from burnish.errors import ConfigError
from burnish.protocol import DataProto
from burnish.rewards.contract import ScoreResult
from burnish.rewards.function import NEEDS_BATCH
from burnish.rewards.managers.naive import NaiveRewardManager, spec_of
from burnish.rewards.scoring import Scoring
from burnish.user_code import load_object, load_target, nearest
from burnish.waits import waiting

CLOSE_S = 60.0  # for a user's manager to end what it holds
_NAIVE = "burnish.rewards.managers.naive:NaiveRewardManager"
#: name → class, or where it is; `register` adds others.
MANAGERS: dict[str, str | type] = {
    "naive": _NAIVE,
    "batch": "burnish.rewards.managers.batch:BatchRewardManager",
    "prime": _NAIVE,
    "dapo": _NAIVE,
}
Manager = TypeVar("Manager", bound=type)


def register(name: str) -> Callable[[Manager], Manager]:
    """Class decorator: `reward_model.reward_manager=name` is this class."""

    def add(cls: Manager) -> Manager:
        taken = MANAGERS.get(name)
        if taken is not None and _origin(taken) != _origin(cls):
            raise ConfigError(f"reward manager {name!r} is already registered ({_origin(taken)}); choose another name")
        MANAGERS[name] = cls
        return cls

    return add


def _origin(manager: str | type) -> str:
    return manager if isinstance(manager, str) else f"{manager.__module__}:{manager.__qualname__}"


class UserManager:
    """A user's own manager: it has to be callable, and may have the rest of what the trainer uses.

    takes_results   it has `score`, and places the results that rows carry
    spec            the function by which each sample can be scored as its trajectory finishes; None: all together
    """

    def __init__(self, manager: Any):
        self.manager, self.name = manager, type(manager).__name__
        self.takes_results = bool(getattr(manager, "takes_results", False))
        self.spec = spec_of(getattr(manager, "compute_score", None)) if self.takes_results else None

    def __call__(self, data: DataProto, return_dict: bool = False) -> Any:
        """The rewards (B, R); with `return_dict` {"reward_tensor": …, "reward_extra_info": …}."""
        return self.manager(data, return_dict=return_dict)

    def score(self, data: DataProto) -> list[ScoreResult]:
        results: list[ScoreResult] = self.manager.score(data)
        return results

    def check_row(self, row: Mapping[str, Any]) -> str | None:
        """What keeps a row from being scored, naming the field, or None; asked when a dataset is loaded."""
        check = getattr(self.manager, "check_row", None)
        return check(row) if check else None

    def close(self) -> None:
        if close := getattr(self.manager, "close", None):
            with waiting("reward", "the trainer", f"{type(self.manager).__name__} to close", CLOSE_S):
                close()


RewardManager: TypeAlias = NaiveRewardManager | UserManager


def adapt_manager(manager: Any) -> RewardManager:
    """The manager itself where it is one of burnish's, else behind the adapter."""
    return manager if isinstance(manager, NaiveRewardManager | UserManager) else UserManager(manager)


def load_manager(
    chosen: RewardManagerConfig,
    section: RewardModelConfig,
    tokenizer: Any,
    num_examine: int,
    scoring: Scoring,
    config: Any = None,
) -> RewardManager:
    """The manager of `reward_manager`, else of `reward_model.reward_manager`; a user's one is adapted. A constructor
    that names `config` is given the run's."""
    cls, key = find_manager(chosen, section.reward_manager)
    arguments = {
        "tokenizer": tokenizer,
        "num_examine": num_examine,
        "compute_score": scoring,
        "reward_fn_key": scoring.reward_fn_key,
    }
    if "config" in inspect.signature(cls).parameters:
        arguments["config"] = config
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
    """(class, the key and value that named it)"""
    found, key = _named_manager(chosen, default)
    return found.burnish_class() if hasattr(found, "burnish_class") else found, key


def _named_manager(chosen: RewardManagerConfig, default: str) -> tuple[Any, str]:
    if chosen.source == "importlib":
        name, keys = chosen.module.name or chosen.name, ("reward_manager.module.path", "reward_manager.module.name")
        return load_object(chosen.module.path, name, *keys), f"{keys[1]}={name}"
    name = chosen.name or default
    chosen_by = "reward_manager.name" if chosen.name else "reward_model.reward_manager"
    key = f"{chosen_by}={name}"
    if name not in MANAGERS and ":" not in name and "." not in name:
        raise ConfigError(
            f"{key}: no such manager{nearest(name, MANAGERS)} (known: {', '.join(MANAGERS)}; "
            "your own: package.module:Class or my_manager.py:Class, or registered with @register)"
        )
    found = MANAGERS.get(name, name)
    return load_target(found, chosen_by) if isinstance(found, str) else found, key
