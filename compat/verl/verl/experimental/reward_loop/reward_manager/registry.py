"""`register`, by the name of its module in verl."""

from verl.experimental.reward_loop.reward_manager.base import register

__all__ = ["register"]
