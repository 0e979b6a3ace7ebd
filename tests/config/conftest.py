"""Shared by the configuration tests: load a command line, or build from keys without Hydra."""

from collections.abc import Callable
from typing import Any

import pytest

from burnish.config import Loaded, Needs, PPOConfig, finalise, load_ppo
from burnish.config.aliases import ALIASES
from burnish.config.build import build
from burnish.errors import ConfigError

REQUIRED = {"data.train_files": "train.parquet", "actor_rollout_ref.model.path": "some/model"}


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split(".")
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    return tree


def refused(
    match: str, call: Callable[..., Any], *args: Any, error: type[Exception] = ConfigError, **more: Any
) -> None:
    with pytest.raises(error, match=match):
        call(*args, **more)


def told(notices: list[str], *words: str) -> list[str]:
    return [notice for notice in notices if all(word in notice for word in words)]


@pytest.fixture
def load() -> Callable[..., Loaded[PPOConfig]]:
    return lambda *argv: load_ppo(list(argv))


@pytest.fixture
def make() -> Callable[..., Loaded[PPOConfig]]:
    """Build from dotted keys, as if a recipe had set them."""
    return lambda keys=None, typed=(): build(nested(keys or {}), PPOConfig, ALIASES, frozenset(typed))


@pytest.fixture
def finish(make) -> Callable[..., tuple[PPOConfig, list[str]]]:
    """Build and finalise with the two required keys set."""

    def run(keys: dict[str, Any] | None = None, needs: Needs | None = None) -> tuple[PPOConfig, list[str]]:
        built = make(REQUIRED | (keys or {}))
        notices = finalise(built.config, built.explicit, needs or Needs())
        return built.config, notices

    return run
