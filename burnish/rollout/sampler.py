"""Draw one token per row from a batch of logits, on their device: `ops.sampling.draw` for rows known by `Sampling`.

Consumes logits (B, V), the rows' `Sampling` and one uniform number per row; hands back token ids and log-probs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from burnish.ops.sampling import draw
from burnish.rollout.base import Sampling


def sample(logits: Tensor, samplings: Sequence[Sampling], noise: Tensor) -> tuple[Tensor, Tensor]:
    """`logits` (B, V), `noise` (B,) in [0, 1) → token ids (B,) int64, log-probs (B,) float32."""

    def column(name: str) -> Tensor:
        values = [getattr(sampling, name) for sampling in samplings]
        return torch.tensor(values, dtype=torch.float32, device=logits.device)

    truncates = any(sampling.truncates for sampling in samplings)
    truncation = (column("top_k"), column("top_p"), column("min_p")) if truncates else None
    return draw(logits, column("temperature"), noise.to(logits.device, torch.float64), truncation)
