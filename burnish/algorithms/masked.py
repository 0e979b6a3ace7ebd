"""Sums, means, variance and whitening of the values inside a mask.

What stands outside the mask is replaced before it is used, so a NaN there reaches neither a result nor a gradient.
A mask is any tensor that is non-zero inside (int, bool or float).
"""

import torch

from burnish.errors import BurnishError


def zero_outside(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return values.masked_fill(~mask.bool(), 0)


def masked_sum(values: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    return zero_outside(values, mask).sum(dim)


def masked_mean(values: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Mean inside the mask, over everything or along `dim`; 0 where the mask is empty."""
    return masked_sum(values, mask, dim) / mask.bool().sum(dim).clamp(min=1)


def masked_var(values: torch.Tensor, mask: torch.Tensor, unbiased: bool = True) -> torch.Tensor:
    """Variance inside the mask, divided by n - 1 (or n). Needs two values, as a variance does."""
    count = int(mask.count_nonzero())
    if count < 2:
        raise BurnishError(f"the variance over a batch needs at least two policy tokens, and this batch has {count}")
    return masked_sum((values - masked_mean(values, mask)) ** 2, mask) / (count - 1 if unbiased else count)


def masked_whiten(values: torch.Tensor, mask: torch.Tensor, shift_mean: bool = True) -> torch.Tensor:
    """(v - mean) / sqrt(var + 1e-8), with mean and variance from inside the mask; `shift_mean=False` keeps the mean.

    Worked out in float64, where equal values give exactly their mean. Values outside the mask are whitened along
    (a NaN there stays one): the caller zeroes them.
    """
    wide = values.double()
    mean = masked_mean(wide, mask)
    whitened = (wide - mean) * (masked_var(wide, mask) + 1e-8).rsqrt()
    return (whitened if shift_mean else whitened + mean).to(values.dtype)
