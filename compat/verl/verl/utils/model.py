"""Positions of tokens."""

import torch


def compute_position_id_with_mask(mask: torch.Tensor) -> torch.Tensor:
    """(…, T) the number of each token among those of the mask, 0 before the first."""
    return (mask.cumsum(-1) - 1).clamp(min=0)
