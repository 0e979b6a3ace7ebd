"""The naive manager under PRIME's name: scores come from several processes in any case."""

from verl.workers.reward_manager.batch import OwnVerify


class PrimeRewardManager(OwnVerify):
    """Scores as trajectories finish; a subclass with its own `verify` or `__call__` scores whole batches."""
