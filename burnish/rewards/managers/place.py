"""From results to tensors, for every manager: scores on tokens, and the other returned values as columns."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch

from burnish.errors import RewardError
from burnish.rewards.contract import ScoreResult
from burnish.rewards.failures import describe_causes


def place(results: Sequence[ScoreResult], response_mask: torch.Tensor, uids: Iterable[Hashable]) -> torch.Tensor:
    """(B, R) float32: each score on the last token of its row with response_mask 1, zeros elsewhere. Turn rewards go on
    the last such token of their turn.

    RewardError: a sample has no score, or not one reward per turn.
    """
    unscored = [(result, uid) for result, uid in zip(results, uids, strict=True) if result.score is None]
    if unscored:
        failed, their_uids = zip(*unscored, strict=True)
        causes = describe_causes(failed, their_uids)
        raise RewardError(f"{len(unscored)} of {len(results)} samples have no score to put on a token\n{causes}")
    rewards = torch.zeros(response_mask.shape, dtype=torch.float32, device=response_mask.device)  # (B, R)
    for row, (result, mask) in enumerate(zip(results, response_mask, strict=True)):
        ends = _turn_ends(mask)
        if not len(ends) or result.score is None:
            continue
        if result.turn_rewards is None:
            rewards[row, ends[-1]] = result.score
        elif len(result.turn_rewards) == len(ends):
            rewards[row, ends] = torch.tensor(result.turn_rewards, dtype=rewards.dtype, device=rewards.device)
        else:
            raise RewardError(f"row {row}: {len(result.turn_rewards)} turn rewards for {len(ends)} turns of the policy")
    return rewards


def _turn_ends(mask: torch.Tensor) -> torch.Tensor:
    """Positions (turns,) in a response_mask (R,) where an unbroken run of the policy's tokens ends."""
    sampled = mask.bool()
    followed = torch.cat([sampled[1:], sampled.new_zeros(1)])  # (R,)
    return (sampled & ~followed).nonzero()[:, 0]


def collect_info(results: Sequence[ScoreResult]) -> dict[str, list[Any]]:
    """`score` and every key of the results' info as lists of B values, None where a sample has no such key."""
    names = dict.fromkeys(name for result in results for name in result.info)
    return {"score": [r.score for r in results], **{name: [r.info.get(name) for r in results] for name in names}}
