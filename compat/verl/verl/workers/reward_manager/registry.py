"""burnish's registry of reward managers: `reward_model.reward_manager=name` finds what is registered here."""

from typing import Any

from burnish.config.reward import RewardManagerConfig
from burnish.errors import ConfigError
from burnish.rewards.managers import MANAGERS, find_manager, register

__all__ = ["REWARD_MANAGER_REGISTRY", "get_reward_manager_cls", "register"]

REWARD_MANAGER_REGISTRY = MANAGERS


def get_reward_manager_cls(name: str) -> Any:
    try:
        return find_manager(RewardManagerConfig(), name)[0]
    except ConfigError as error:
        raise ValueError(str(error)) from None
