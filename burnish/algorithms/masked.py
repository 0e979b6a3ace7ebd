"""Sums, means, variance and whitening of the values inside a mask, and sums along its steps.

What stands outside the mask is replaced before it is used, so a NaN there reaches neither a result nor a gradient.
A mask is any tensor that is non-zero inside (int, bool or float).
"""

import torch

from burnish.errors import BurnishError


def zero_outside(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The values inside the mask, 0 elsewhere."""
    return values.masked_fill(~mask.bool(), 0)


def masked_sum(values: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Sum inside the mask, over everything or along `dim`."""
    return zero_outside(values, mask).sum(dim)


def masked_mean(values: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Mean inside the mask, over everything or along `dim`; 0 where the mask is empty."""
    return masked_sum(values, mask, dim) / mask.bool().sum(dim).clamp(min=1)


def masked_var(values: torch.Tensor, mask: torch.Tensor, unbiased: bool = True) -> torch.Tensor:
    """Variance inside the mask, divided by n - 1 (or n). Needs two values, as a variance does."""
    count = int(mask.bool().sum())
    if count < 2:
        raise BurnishError(f"the variance over a batch needs at least two policy tokens, and this batch has {count}")
    squared = (values - masked_mean(values, mask)) ** 2
    return masked_sum(squared, mask) / (count - 1 if unbiased else count)


def masked_whiten(values: torch.Tensor, mask: torch.Tensor, shift_mean: bool = True) -> torch.Tensor:
    """(v - mean) / sqrt(var + 1e-8), with mean and variance from inside the mask; `shift_mean=False` keeps the mean.

    Worked out in float64, where equal values give exactly their mean. Values outside the mask are whitened along
    (a NaN there stays one): the caller zeroes them.
    """
    wide = values.double()
    mean = masked_mean(wide, mask)
    whitened = (wide - mean) * (masked_var(wide, mask) + 1e-8).rsqrt()
    return (whitened if shift_mean else whitened + mean).to(values.dtype)


def close_up(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(B, R) → (B, R): each row's values inside the mask moved together to its start, 0 after them."""
    return torch.zeros_like(values).masked_scatter(_closed(mask), values[mask.bool()])


def spread_out(steps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(B, R) → (B, R): undoes `close_up`, each step back where the mask has it, 0 elsewhere."""
    return torch.zeros_like(steps).masked_scatter(mask.bool(), steps[_closed(mask)])


def _closed(mask: torch.Tensor) -> torch.Tensor:
    """The mask with its holes closed up: as many in each row, all at the start."""
    return torch.arange(mask.shape[-1], device=mask.device) < mask.bool().sum(-1, keepdim=True)


def discounted_sum_to_end(values: torch.Tensor, discount: float) -> torch.Tensor:
    """y_t = x_t + discount · y_{t+1} along the last dimension.

    After k passes y_t holds the terms t .. t + 2^k - 1; adding the next block, discounted, doubles that.
    """
    total, reach = values.clone(), 1
    while reach < values.shape[-1]:
        total[..., :-reach] += discount**reach * total[..., reach:]
        reach *= 2
    return total
