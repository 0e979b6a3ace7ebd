"""What a caller scores with → keys of `custom_reward_function`, and the functions that only this process has.

reward=my_function                                    a function, plain or async, a class, a lambda, a closure
reward="my_reward.py", "my_reward.py:name"            a file; "package.module", "package.module:name": a module
reward="gsm8k"                                        a scorer, or a data source that has one
reward={"right": right, "short": (short, 0.2)}        the weighted sum of several, each with a curve; also a list
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from burnish.config.reward import CustomRewardFunctionConfig
from burnish.errors import ConfigError, DataError
from burnish.rewards import function
from burnish.rewards.contract import HERE
from burnish.rewards.routing import SCORERS, scorer_for
from burnish.user_code import nearest

SECTION = "custom_reward_function"


@dataclass(frozen=True)
class Reward:
    keys: dict[str, Any] = field(default_factory=dict)
    objects: dict[str, Callable[..., Any]] = field(default_factory=dict)  # by name

    @property
    def short(self) -> list[tuple[str, str, Any]]:
        """As `given_keys` takes them."""
        return [("reward", key, value) for key, value in self.keys.items()]

    @property
    def notices(self) -> list[str]:
        if not self.objects:
            return []
        return [
            f"reward function {', '.join(self.objects)}: other processes cannot import it, so it runs in this one, in "
            "a thread; reward.timeout limits each score"
        ]

    @contextmanager
    def shared(self) -> Iterator[None]:
        """The objects are found by their names inside this block."""
        before = dict(function.objects)
        function.objects.update(self.objects)
        try:
            yield
        finally:
            function.objects.clear()
            function.objects.update(before)


def read_reward(reward: Any) -> Reward:
    if reward is None:
        return Reward()
    objects: dict[str, Callable[..., Any]] = {}
    if isinstance(reward, Mapping | list | tuple):
        if not reward:
            raise ConfigError("reward is empty; give a function, or leave reward= out for the scorers of the rows")
        return Reward({f"{SECTION}.functions": dict(_several(reward, objects))}, objects)
    place = _place(reward, _name(reward), objects)
    return Reward({f"{SECTION}.{name}": value for name, value in place.items()}, objects)


def _several(reward: Any, objects: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A list names its functions as they are called; (function, weight) weighs one."""
    pairs = list(reward.items()) if isinstance(reward, Mapping) else [(None, item) for item in reward]
    taken = set[str]()
    for name, item in pairs:
        one, weight = item if isinstance(item, tuple) and len(item) == 2 else (item, 1.0)
        place = dict(one) if isinstance(one, Mapping) else _place(one, str(name or _name(one)), objects)
        name = str(name or place.get("name") or re.split(r"[/.]", place.get("path", "").removesuffix(".py"))[-1])
        if isinstance(one, str | Path):
            place = {"name": CustomRewardFunctionConfig().name, **place}  # not the name that it has here
        if name in taken:
            raise ConfigError(f"reward: two functions are called {name}; give a dict that names them")
        taken.add(name)
        yield name, {"weight": weight, **place}


def _place(one: Any, name: str, objects: dict[str, Any]) -> dict[str, Any]:
    """`path` and `name` of one function; one that no other process can import is added to `objects`."""
    if isinstance(one, Path):
        one = str(one)
    if isinstance(one, str):
        return _by_text(one)
    if not callable(one):
        kind = type(one).__name__
        raise ConfigError(f"reward has the type {kind}; give a function, several in a dict, a path or a scorer's name")
    if importable(one):
        return {"path": one.__module__, "name": one.__name__}
    objects[name] = one
    return {"path": HERE, "name": name}


def _by_text(text: str) -> dict[str, Any]:
    path, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    if path.endswith(".py") or Path(path).expanduser().is_file():
        return {"path": path} | ({"name": name} if name else {})
    names = {scorer.name: scorer for scorer in SCORERS}
    with suppress(DataError):
        scorer = names.get(text) or scorer_for(text)
        if scorer.runs == "sandbox":
            raise ConfigError(f"reward={text!r}: leave it out; this scorer is for rows whose data_source names it")
        return {"path": scorer.module.__name__}
    if name or "." in path:
        return {"path": path} | ({"name": name} if name else {})
    raise ConfigError(
        f"reward={text!r}: no such scorer{nearest(text, names)} (there are {', '.join(names)}); give a function of "
        "your own as it is, or as my_reward.py:name"
    )


def importable(one: Any) -> bool:
    """Whether another process finds this very object by its module and name. What the program itself is made of
    (`__main__`) would run a second time there."""
    module, name = getattr(one, "__module__", None), getattr(one, "__name__", None)
    if module in (None, "__main__") or name is None:
        return False
    there = sys.modules.get(module)
    is_file = Path(getattr(there, "__file__", None) or "").is_file()
    return is_file and getattr(there, "__spec__", None) is not None and getattr(there, name, None) is one


def _name(one: Any) -> str:
    while isinstance(one, partial):
        one = one.func
    name = getattr(one, "__name__", type(one).__name__)
    return "reward" if name == "<lambda>" else name
