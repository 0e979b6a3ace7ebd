"""burnish's batch manager, for subclasses: one call of the reward function with lists, or a subclass's `verify`."""

from typing import Any

from burnish.protocol import DataProto
from burnish.rewards.contract import ScoreResult, checked_results
from burnish.rewards.function import result_of
from burnish.rewards.managers import batch
from burnish.rewards.managers.naive import RESULT_COLUMN, NaiveRewardManager
from verl.workers.reward_manager.abstract import OwnScores


class OwnVerify(OwnScores, NaiveRewardManager):
    """A subclass that defines `verify` scores whole batches with it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "verify" in vars(cls):
            cls.spec = None  # type: ignore[assignment]  # nothing is scored as trajectories finish

    def verify(self, data: DataProto) -> list[Any]:
        """The scores of a batch, numbers or dicts with "score"."""
        return [result.score for result in super().score(data)]

    def score(self, data: DataProto) -> list[ScoreResult]:
        if type(self).verify is OwnVerify.verify:
            return super().score(data)
        carried = data.non_tensor_batch.get(RESULT_COLUMN, [None] * len(data))
        if all(result is not None for result in carried):
            return list(carried)
        answers = checked_results(self.verify(data), len(data), f"{type(self).__name__}.verify")
        fresh = (result_of(self.request(data, i), answer, 0.0) for i, answer in enumerate(answers))
        return [own if result is None else result for result, own in zip(carried, fresh, strict=True)]


class BatchRewardManager(OwnVerify, batch.BatchRewardManager):
    def __init__(
        self,
        tokenizer: Any,
        num_examine: int,
        compute_score: Any = None,
        reward_fn_key: str = "data_source",
        **reward_kwargs: Any,
    ):
        super().__init__(tokenizer, num_examine, compute_score, reward_fn_key)
        self.reward_kwargs = reward_kwargs
