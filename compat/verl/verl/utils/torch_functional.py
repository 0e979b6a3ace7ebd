"""Masked statistics, log-probs and padding, as users' losses and estimators import them."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from burnish.algorithms import masked
from burnish.algorithms.masked import masked_var, masked_whiten

__all__ = [
    "clip_by_value",
    "entropy_from_logits",
    "get_eos_mask",
    "get_response_mask",
    "logprobs_from_logits",
    "masked_mean",
    "masked_sum",
    "masked_var",
    "masked_whiten",
    "pad_sequence_to_length",
]


def masked_sum(values: torch.Tensor, mask: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    return masked.masked_sum(values, mask, axis)


def masked_mean(values: torch.Tensor, mask: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    return masked.masked_mean(values, mask, axis)


def logprobs_from_logits(logits: torch.Tensor, labels: torch.Tensor, inplace_backward: bool = True) -> torch.Tensor:
    """(..., V), (...) → (...)"""
    return logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def entropy_from_logits(logits: torch.Tensor) -> torch.Tensor:
    """(..., V) → (...)"""
    log_probs = logits.log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def clip_by_value(x: torch.Tensor, tensor_min: torch.Tensor, tensor_max: torch.Tensor) -> torch.Tensor:
    return torch.max(torch.min(x, tensor_max), tensor_min)


def get_response_mask(
    response_id: torch.Tensor, eos_token: int | Sequence[int] = 2, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """(B, R) 1 up to and with the first of the end tokens."""
    ends = torch.isin(response_id, torch.tensor(eos_token, device=response_id.device)).to(torch.int64)
    return (ends.cumsum(-1) - ends == 0).to(dtype)


get_eos_mask = get_response_mask  # its name until verl 0.2


def pad_sequence_to_length(tensors: torch.Tensor, max_seq_len: int, pad_token_id: Any, left_pad: bool = False) -> Any:
    """(B, T) padded to `max_seq_len` positions."""
    missing = max(max_seq_len - tensors.shape[-1], 0)
    return F.pad(tensors, (missing, 0) if left_pad else (0, missing), value=pad_token_id)
