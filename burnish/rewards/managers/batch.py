"""The batch manager: a function in the batch form is called once, with lists of all samples of a batch.

So its rewards can depend on what the others of a batch are, and one request to a server can carry them all. Nothing is
scored before the whole batch is generated. A function for one sample, and the built-in scorers, are scored as the naive
manager has them scored; everything else is the naive manager's too.
"""

from burnish.rewards.managers.naive import NaiveRewardManager


class BatchRewardManager(NaiveRewardManager):
    takes_batches = True
