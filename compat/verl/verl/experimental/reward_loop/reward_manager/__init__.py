"""Reward managers that score one response at a time, and users' own by `@register("name")`."""

from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase, register
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

__all__ = ["NaiveRewardManager", "RewardManagerBase", "register"]
