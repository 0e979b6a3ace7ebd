"""The batch manager: a function in the batch form is called once, with lists of all samples of a batch, when the whole
batch is generated. Its rewards can depend on the other samples. Any other function is called as by the naive manager.
"""

from burnish.rewards.managers.naive import NaiveRewardManager


class BatchRewardManager(NaiveRewardManager):
    takes_batches = True
