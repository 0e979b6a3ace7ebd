"""Reward managers: burnish's, for subclasses, and users' own by `@register("name")`.

What a subclass leaves alone works as in burnish: processes, time limits, failures. One with its own `__call__` is
called with whole batches, and a failure of it ends the run.
"""

from verl.workers.reward_manager.abstract import AbstractRewardManager
from verl.workers.reward_manager.batch import BatchRewardManager
from verl.workers.reward_manager.dapo import DAPORewardManager
from verl.workers.reward_manager.naive import NaiveRewardManager
from verl.workers.reward_manager.prime import PrimeRewardManager
from verl.workers.reward_manager.registry import get_reward_manager_cls, register

__all__ = [
    "AbstractRewardManager",
    "BatchRewardManager",
    "DAPORewardManager",
    "NaiveRewardManager",
    "PrimeRewardManager",
    "get_reward_manager_cls",
    "register",
]
