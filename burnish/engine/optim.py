"""Optimiser, learning-rate schedule and gradient clipping.

The learning rate of an optimiser step is a pure function of the step's number, so a resumed run needs nothing but that.
Weight decay applies to every parameter, norms and biases included, as torch does by default.
"""

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from burnish.errors import ConfigError

if TYPE_CHECKING:
    from burnish.config.optim import OptimConfig


def make_optimizer(parameters: Iterable[torch.nn.Parameter], config: "OptimConfig") -> torch.optim.Optimizer:
    """The optimiser named by `optim.optimizer`; its learning rate is set at each step from the schedule."""
    if config.optimizer != "AdamW":
        raise ConfigError(f"optim.optimizer={config.optimizer}: choose AdamW")
    first, second = config.betas
    return torch.optim.AdamW(
        parameters, lr=config.lr, betas=(first, second), weight_decay=config.weight_decay, fused=True
    )


def learning_rate(config: "OptimConfig", total_steps: int) -> Callable[[int], float]:
    """The schedule: learning rate of optimiser step 0, 1, … A linear warm-up (`lr_warmup_steps`; negative:
    `lr_warmup_steps_ratio` of all), then constant, or a cosine down to `min_lr_ratio` of the peak."""
    warmup = config.lr_warmup_steps
    if warmup < 0:
        warmup = int(config.lr_warmup_steps_ratio * total_steps)

    def at(step: int) -> float:
        if step < warmup:
            return config.lr * (step + 1) / (warmup + 1)
        if config.lr_scheduler_type == "constant":
            return config.lr
        lowest = config.min_lr_ratio
        progress = min(1.0, (step - warmup) / max(1, total_steps - 1 - warmup))
        return config.lr * (lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * progress)))

    return at


def clip_gradients(gradients: Iterable[Tensor], limit: float | None, shards: dist.ProcessGroup | None = None) -> Tensor:
    """Scale gradients so that their norm is at most `limit` (None or 0: leave them); returns the norm before. Where
    each process of `shards` has slices of them, it is the norm of the whole."""
    gradients = list(gradients)
    if not gradients:
        return torch.zeros(())
    norm = torch.nn.utils.get_total_norm(gradients)
    if shards is not None:
        squares = norm.double() ** 2
        dist.all_reduce(squares, group=shards)
        norm = squares.sqrt().to(norm.dtype)
    if limit:
        scale = torch.clamp(limit / (norm + 1e-6), max=1.0)
        torch._foreach_mul_(gradients, scale)
    return norm
