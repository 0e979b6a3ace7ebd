"""The batch manager: a function in the batch form is called once, with lists of all samples of a batch.

Its rewards can then depend on the other samples, and one request to a server can carry them all. Nothing is scored
before the whole batch is generated. Any other function is called as by the naive manager.
"""

from burnish.rewards.managers.naive import NaiveRewardManager


class BatchRewardManager(NaiveRewardManager):
    takes_batches = True
