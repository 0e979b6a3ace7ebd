"""Statistics of the responses to one prompt, as vectorised estimators import them."""

from typing import Any

import numpy as np
import torch

from burnish.algorithms.advantages.inputs import Groups


def as_torch_index(index: Any, device: torch.device | str | None = None) -> torch.Tensor:
    """(B,) the group of each row, 0..G-1, from labels of any kind."""
    labels = index.cpu() if isinstance(index, torch.Tensor) else index
    return Groups.of(np.asarray(labels)).index.to(device or getattr(index, "device", "cpu"))


def group_mean_std(
    scores: torch.Tensor, gidx: torch.Tensor, eps: float = 1e-6, device: torch.device | str | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(G,) mean, standard deviation of a sample (its square is at least `eps`) and count of each group. A group of one
    has the mean 0 and the deviation 1."""
    scores, gidx = (one.to(device or scores.device) for one in (scores.float(), gidx))
    count = torch.bincount(gidx).to(scores)
    mean = torch.zeros_like(count).index_add(0, gidx, scores) / count.clamp(min=1)
    squares = torch.zeros_like(count).index_add(0, gidx, (scores - mean[gidx]) ** 2)
    std = (squares / (count - 1).clamp(min=1)).clamp(min=eps).sqrt()
    single = count <= 1
    return mean.masked_fill(single, 0.0), std.masked_fill(single, 1.0), count
