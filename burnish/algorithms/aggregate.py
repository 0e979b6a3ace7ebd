"""One number from a loss per token (`loss_agg_mode`).

    token-mean                every token weighs the same
    token-sum                 no division at all: the learning rate has to fit the batch
    seq-mean-token-sum        the sum of a sequence's tokens, averaged over sequences: long ones weigh more
    seq-mean-token-mean       the mean of a sequence's tokens, averaged over sequences: each weighs the same
    seq-mean-token-sum-norm   as seq-mean-token-sum, divided by a constant length (Dr.GRPO)

Every mode is a sum over the micro-batch divided by counts of the whole mini-batch, over all micro-batches and devices.
So the parts add up: cutting a mini-batch in any way gives the same loss and the same gradient. A backend that averages
gradients over devices must undo that by multiplying with their number; nothing here knows how many there are.
How we differ from the usual implementation: `seq-mean-token-sum-norm` divides by `max_response_length` (or
`loss_scale_factor`), never by a tensor's width, which would change with the batch; a NaN outside the mask leaks in no
mode; a mini-batch without policy tokens has loss 0, not NaN.
"""

from dataclasses import dataclass

import torch

from burnish.algorithms.masked import masked_mean, masked_sum
from burnish.config.actor import AGGREGATIONS
from burnish.errors import ConfigError


@dataclass(frozen=True)
class LossCounts:
    """What a whole mini-batch holds: the denominators of its loss."""

    tokens: int  # policy tokens
    sequences: int  # rows with at least one policy token

    @classmethod
    def of(cls, response_mask: torch.Tensor) -> "LossCounts":
        inside = response_mask.bool()
        return cls(tokens=int(inside.sum()), sequences=int(inside.any(-1).sum()))


def aggregate(
    losses: torch.Tensor, mask: torch.Tensor, mode: str, counts: LossCounts, max_response_length: float
) -> torch.Tensor:
    """This micro-batch's share of the mini-batch's loss, a scalar.

    losses, mask: (B, R); counts: of the whole mini-batch; max_response_length: the constant of
    `seq-mean-token-sum-norm`, read by no other mode.
    """
    tokens, sequences = max(counts.tokens, 1), max(counts.sequences, 1)
    if mode == "token-mean":
        return masked_sum(losses, mask) / tokens
    if mode == "token-sum":
        return masked_sum(losses, mask)
    if mode == "seq-mean-token-sum":
        return masked_sum(losses, mask) / sequences
    if mode == "seq-mean-token-mean":
        return masked_mean(losses, mask, dim=-1).sum() / sequences
    if mode == "seq-mean-token-sum-norm":
        return masked_sum(losses, mask) / (sequences * max_response_length)
    raise ConfigError(f"loss_agg_mode={mode} is unknown: there is {', '.join(AGGREGATIONS)}")
