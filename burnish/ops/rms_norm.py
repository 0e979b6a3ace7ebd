"""RMS norm of each row, with the addition of the residual stream before it where there is one.

Rounds where HF's RMSNorm modules do: float32 inside, then the dtype of the states, then times the weight.
"""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Norm of the rows of `x` (T, C), contiguous, times `weight` (C,), and the rows themselves; with a `residual`
    (T, C), to which `x` is first added in place, of the sum."""
    if x.is_cuda:
        from burnish.ops.triton.rms_norm import launch

        return launch(x, weight, eps, residual), x if residual is None else residual
    total = x if residual is None else residual.add_(x)
    return _normed(total, weight, eps), total


def add_rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Norm of the rows of `x + residual` (T, C) times `weight` (C,), and that sum; without `residual`, of `x` itself.
    Differentiable in `x`, `weight` and `residual`, from the gradients of both results."""
    if x.is_cuda:
        from burnish.ops.triton.rms_norm import AddRmsNorm

        return AddRmsNorm.apply(x, weight, eps, residual)
    total = x if residual is None else x + residual
    return _normed(total, weight, eps), total


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    # Without its weight, torch's function rounds to the dtype before the product, as HF does.
    return torch.rms_norm(x, weight.shape, None, eps) * weight
