"""RMS norm of each row, with the addition of the residual stream before it where there is one.

Consumes hidden states (T, C); returns the normed states and the new residual. Rounds where HF's RMSNorm modules do:
float32 inside, then the dtype of the states, then times the weight.

`rms_norm` is for inference: it writes the new residual over the old. `add_rms_norm` is for training: it leaves its
inputs as they are and is differentiable.
"""

from typing import overload

import torch
from torch import Tensor


@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor: ...


@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor) -> tuple[Tensor, Tensor]: ...


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """Norm of the rows of `x` (T, C), contiguous, times `weight` (C,).

    With a `residual` (T, C), `x` is first added to it in place; returns the norm of the sum, and the residual.
    """
    if x.is_cuda:
        from burnish.ops.triton.rms_norm import launch

        normed = launch(x, weight, eps, residual)
        return normed if residual is None else (normed, residual)
    if residual is None:
        return _normed(x, weight, eps)
    return _normed(residual.add_(x), weight, eps), residual


def add_rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Norm of the rows of `x + residual` (T, C) times `weight` (C,), and that sum; without `residual`, of `x` itself.

    Differentiable in `x`, `weight` and `residual`, from the gradients of both results.
    """
    if x.is_cuda:
        from burnish.ops.triton.rms_norm import AddRmsNorm

        normed, total = AddRmsNorm.apply(x, weight, eps, residual)
        return normed, total
    total = x if residual is None else x + residual
    return _normed(total, weight, eps), total


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    # Without its weight, torch's function rounds to the dtype before the product, as HF does.
    return torch.rms_norm(x, weight.shape, None, eps) * weight
