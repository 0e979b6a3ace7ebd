"""burnish's naive manager, for subclasses."""

from burnish.rewards.managers import naive
from verl.workers.reward_manager.abstract import OwnScores


class NaiveRewardManager(OwnScores, naive.NaiveRewardManager):
    """Scores one by one, as trajectories finish; a subclass with its own `__call__` scores whole batches."""
