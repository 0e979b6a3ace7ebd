"""The naive manager: one score per sample, on the last token that the policy sampled.

A sample's score is that of `rm_scores` (B, R), where the batch has it; else of the column `score_result`, put there
when the trajectory finished; else of `compute_score` on the tokens with response_mask 1. A sample without a score is a
RewardError: `failures.apply_policy` drops such samples before. A row without a token of the policy keeps zeros.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from burnish.errors import ConfigError, RewardError
from burnish.literal import print_text
from burnish.protocol import DataProto
from burnish.rewards.contract import FunctionSpec, ScoreRequest, ScoreResult
from burnish.rewards.failures import describe_causes
from burnish.rewards.function import NEEDS_BATCH, bind, score_here
from burnish.rewards.scoring import FACTS, Scoring, request_for

RESULT_COLUMN = "score_result"
_NO_MODEL_SCORE = "reward_model.style='model': the row came without a score of the reward model"


class NaiveRewardManager:
    """`compute_score` is a Scoring (several samples at once, in worker processes), any function of the contract (called
    here, one by one), or None for the built-in scorers."""

    takes_results = True
    takes_batches = False

    def __init__(
        self,
        tokenizer: Any,
        num_examine: int,
        compute_score: Callable[..., Any] | None = None,
        reward_fn_key: str = "data_source",
        **kwargs: Any,
    ):
        if kwargs:
            raise ConfigError(f"the naive reward manager takes no {', '.join(sorted(kwargs))}")
        self.tokenizer = tokenizer
        self.num_examine = num_examine
        self.reward_fn_key = reward_fn_key
        self.compute_score = compute_score or Scoring(FunctionSpec(), reward_fn_key=reward_fn_key)
        self._function = None if isinstance(self.compute_score, Scoring) else bind(self.compute_score, "compute_score")
        if self._function and self._function.batch and not self.takes_batches:
            raise ConfigError(f"compute_score: {NEEDS_BATCH}")

    def __call__(self, data: DataProto, return_dict: bool = False) -> torch.Tensor | dict[str, Any]:
        if "rm_scores" in data.batch:
            scores, extra = data.batch["rm_scores"], {}
        else:
            results = self.score(data)
            uids = data.non_tensor_batch.get("uid", range(len(data)))
            scores = place(results, data.batch["response_mask"], uids)
            names = dict.fromkeys(name for result in results for name in result.info)
            extra = {"score": [r.score for r in results]}
            extra |= {name: [r.info.get(name) for r in results] for name in names}  # None where it has no such key
            self._examine(data, results)
        return {"reward_tensor": scores, "reward_extra_info": extra} if return_dict else scores

    @cached_property  # which, unlike a property, a user's subclass may assign
    def name(self) -> str:
        return type(self).__name__

    @cached_property
    def spec(self) -> FunctionSpec | None:
        return spec_of(self.compute_score)

    def score(self, data: DataProto) -> list[ScoreResult]:
        """One result per row: those the rows carry, and fresh ones for the rest. Failures are inside the results."""
        carried = data.non_tensor_batch.get(RESULT_COLUMN)
        results: list[ScoreResult | None] = [None] * len(data) if carried is None else list(carried)
        missing = {i: self.request(data, i) for i, result in enumerate(results) if result is None}
        if isinstance(self.compute_score, Scoring):
            to_model = [i for i in missing if self.compute_score.leaves_to_model(_row(data, i))]
            scored = {i: ScoreResult.failure(missing.pop(i), _NO_MODEL_SCORE) for i in to_model}
            fresh = self.compute_score.score_all(list(missing.values()))
        else:
            assert self._function is not None
            scored, fresh = {}, score_here(self._function, list(missing.values()), "compute_score")
        scored |= dict(zip(missing, fresh, strict=True))
        return [scored[i] if result is None else result for i, result in enumerate(results)]

    def check_row(self, row: Mapping[str, Any]) -> str | None:
        return self.compute_score.check_row(row) if isinstance(self.compute_score, Scoring) else None

    def close(self) -> None:
        if isinstance(self.compute_score, Scoring):
            self.compute_score.close()

    def request(self, data: DataProto, i: int) -> ScoreRequest:
        row = _row(data, i)
        facts = {name: row[name] for name in FACTS if row.get(name) is not None}
        return request_for(row, self.response_text(data, i), facts, self.reward_fn_key)

    def response_text(self, data: DataProto, i: int) -> str:
        """What the policy wrote in row i, one line per turn: other text was between them."""
        mask = data.batch["response_mask"][i].tolist()  # (R,)
        ids = data.batch["responses"][i].tolist()
        turns = itertools.groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1])
        own = [[token for token, _ in turn] for sampled, turn in turns if sampled]
        return "\n".join(self.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in own)

    def _examine(self, data: DataProto, results: list[ScoreResult]) -> None:
        """Print the first `num_examine` samples of each data source."""
        if self.num_examine <= 0:
            return
        width = data.batch["prompts"].shape[1]
        seen: Counter[str] = Counter()
        sources = data.non_tensor_batch.get(self.reward_fn_key, [""] * len(data))
        for i, (source, result) in enumerate(zip(sources, results, strict=True)):
            seen[source] += 1
            if seen[source] > self.num_examine:
                continue
            request = self.request(data, i)
            real = data.batch["attention_mask"][i, :width].bool()  # (P,)
            prompt = self.tokenizer.decode(data.batch["prompts"][i][real].tolist(), skip_special_tokens=True)
            info = "".join(f", {name} {value}" for name, value in result.info.items())
            print_text(
                f"--- sample {seen[source]} of {source or 'the batch'} ---\n"
                f"prompt:       {prompt}\n"
                f"response:     {request.solution_str}\n"
                f"ground truth: {request.ground_truth}\n"
                f"score:        {result.score}{info}"
            )


def spec_of(function: Any) -> FunctionSpec | None:
    """The spec of a function that scores single samples."""
    return None if isinstance(function, Scoring) and not function.one_by_one else getattr(function, "spec", None)


def _row(data: DataProto, i: int) -> dict[str, Any]:
    return {name: column[i] for name, column in data.non_tensor_batch.items()}


def place(results: Sequence[ScoreResult], response_mask: torch.Tensor, uids: Iterable[Hashable]) -> torch.Tensor:
    """(B, R) float32: each score on the last token of its row with response_mask 1, zeros elsewhere. Turn rewards go on
    the last such token of their turn. RewardError: a sample has no score, or not one reward per turn."""
    unscored = [(result, uid) for result, uid in zip(results, uids, strict=True) if result.score is None]
    if unscored:
        failed, their_uids = zip(*unscored, strict=True)
        causes = describe_causes(failed, their_uids)
        raise RewardError(f"{len(unscored)} of {len(results)} samples have no score to put on a token\n{causes}")
    rewards = torch.zeros(response_mask.shape, dtype=torch.float32, device=response_mask.device)  # (B, R)
    for row, (result, mask) in enumerate(zip(results, response_mask, strict=True)):
        sampled = mask.bool()
        followed = torch.cat([sampled[1:], sampled.new_zeros(1)])  # (R,)
        ends = (sampled & ~followed).nonzero()[:, 0]  # (turns,) where an unbroken run of the policy's tokens ends
        if not len(ends) or result.score is None:
            continue
        if result.turn_rewards is None:
            rewards[row, ends[-1]] = result.score
        elif len(result.turn_rewards) == len(ends):
            rewards[row, ends] = torch.tensor(result.turn_rewards, dtype=rewards.dtype, device=rewards.device)
        else:
            raise RewardError(f"row {row}: {len(result.turn_rewards)} turn rewards for {len(ends)} turns of the policy")
    return rewards
