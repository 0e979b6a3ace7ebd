"""Soft overlong punishment: a penalty that grows over the last tokens before the limit, instead of one at the limit.

    penalty_i = -penalty_factor · max(0, length_i - (max_response_length - len)) / len

so it is 0 up to `len` tokens before the limit and -penalty_factor at it. `length_i` counts every token of the response,
also those the policy did not write: they also count towards the limit. The penalty is added to the score.

Keys: `algorithm.overlong_buffer.{enable,len,penalty_factor}`, `data.max_response_length`.

Paper: DAPO (Yu et al. 2025, arXiv:2503.14476).

How we differ:
- The paper stops at the full penalty beyond the limit. The formula here keeps growing, as in the usual
  implementation; no response of a run is longer than the limit, so nothing can tell the two apart.
- The penalty stands on the last token that the policy sampled, next to the score (`trainer/score.py`). Elsewhere it
  stands on the last token of the response, whoever wrote that, and for an empty response on the last column.
"""

from typing import TYPE_CHECKING

import torch

from burnish.errors import ConfigError

if TYPE_CHECKING:
    from burnish.config.algorithm import OverlongBufferConfig


def overlong_penalty(lengths: torch.Tensor, max_response_length: int, config: "OverlongBufferConfig") -> torch.Tensor:
    """What is added to the score of each response, (B,), at most 0; `lengths` (B,) in tokens."""
    if not config.enable:
        return torch.zeros(lengths.shape, device=lengths.device)
    if not 0 < config.len <= max_response_length:
        raise ConfigError(
            f"algorithm.overlong_buffer.len={config.len}: the penalty grows over at least 1 and at most all of "
            f"data.max_response_length={max_response_length} tokens"
        )
    inside = (lengths - (max_response_length - config.len)).clamp(min=0)  # (B,) tokens in the buffer
    return inside.neg().float() * config.penalty_factor / config.len
