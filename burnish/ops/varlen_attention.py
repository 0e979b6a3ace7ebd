"""Causal attention over a packed line: each token sees the tokens of its own sequence up to itself, and no other.

In half precision on a GPU torch's flash kernel takes the line as it is. Elsewhere sequences of about equal length are
stacked, padded on the right to the longest of the stack, which a causal token never sees.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)
FLASH_HEAD = 256  # the largest head that the flash kernel takes; sizes go by eights


class SequenceStack(NamedTuple):
    """Sequences that are attended over together, as a rectangle of `rows` times `longest` slots."""

    rows: int
    longest: int
    places: Tensor  # (n,) where their tokens are in the line
    slots: Tensor  # (n,) and in the rectangle, row by row


@dataclass(frozen=True)
class Sequences:
    lengths: tuple[int, ...]  # of the B sequences, each at least 1
    starts: Tensor  # (B+1,) int32, where each begins; the last is T

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str) -> "Sequences":
        starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32).to(device, non_blocking=True)
        return cls(tuple(lengths), starts)

    @property
    def longest(self) -> int:
        return max(self.lengths, default=0)

    @cached_property
    def stacks(self) -> list[SequenceStack]:
        """All sequences, those together whose lengths are between the same two powers of two: mostly real tokens."""
        begins = list(itertools.accumulate(self.lengths, initial=0))
        groups: dict[int, list[int]] = {}
        for row, length in enumerate(self.lengths):
            groups.setdefault((length - 1).bit_length(), []).append(row)
        stacks = []
        for group in groups.values():
            longest = max(self.lengths[row] for row in group)
            places = [torch.arange(begins[row], begins[row + 1]) for row in group]
            slots = [torch.arange(self.lengths[row]) + i * longest for i, row in enumerate(group)]
            device = self.starts.device
            stacks.append(SequenceStack(len(group), longest, torch.cat(places).to(device), torch.cat(slots).to(device)))
        return stacks


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sequences: Sequences,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """What each token gathers from its sequence, (T, H, D).

    window    a token sees itself and the window - 1 tokens before it; None: all before it
    softcap   scores are squeezed into (-softcap, softcap) by tanh
    """
    if not sequences.lengths:
        return query.clone()
    if window is not None and window >= sequences.longest:
        window = None
    size = query.shape[-1]
    is_flash = query.is_cuda and query.dtype in HALF and size % 8 == 0 and size <= FLASH_HEAD
    if is_flash and softcap is None and value.shape[-1] == size:
        left = -1 if window is None else window - 1
        starts, longest = sequences.starts, sequences.longest
        attended: Tensor = torch.ops.aten._flash_attention_forward(
            query, key, value, starts, starts, longest, longest, 0.0, window is None, False,
            scale=scale, window_size_left=left, window_size_right=-1 if window is None else 0,
        )[0]  # fmt: skip
        return attended
    if len(set(sequences.lengths)) == 1:  # a rectangle as it is
        return _attend((query, key, value), len(sequences.lengths), sequences.longest, scale, window, softcap)
    line = None
    for rows, longest, places, slots in sequences.stacks:
        stacked = [_Move.apply(part, places, slots, rows * longest) for part in (query, key, value)]
        out = _attend(stacked, rows, longest, scale, window, softcap)
        there = _Move.apply(out, slots, places, len(query))
        line = there if line is None else line + there
    assert line is not None
    return line


class _Move(torch.autograd.Function):
    """Rows of x: those at `source` go to `target` of a new tensor with `count` rows, 0 elsewhere. No row is named
    twice, so the backward pass is the same move the other way, without any sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Tensor, target: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(source, target)
        ctx.count = len(x)
        return x.new_zeros((count, *x.shape[1:])).index_copy_(0, target, x.index_select(0, source))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        source, target = ctx.saved_tensors
        gradient = gradients[0]
        back = gradient.new_zeros((ctx.count, *gradient.shape[1:]))
        return back.index_copy_(0, source, gradient.index_select(0, target)), None, None, None


def _attend(
    line: Sequence[Tensor], rows: int, longest: int, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    """Causal attention over queries, keys and values (rows * longest, heads, D), to queries' shape."""
    query, key, value = (part.unflatten(0, (rows, longest)).transpose(1, 2) for part in line)  # (b, heads, L, D)
    repeats = query.shape[1] // key.shape[1]
    seen = None
    if window is not None or softcap is not None:
        seen = torch.ones(longest, longest, dtype=torch.bool, device=query.device).tril()
        seen = seen if window is None else seen.triu(1 - window)
    if softcap is None:
        attended = F.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, is_causal=seen is None, scale=scale, enable_gqa=repeats > 1
        )
    else:
        assert seen is not None
        key, value = (part.repeat_interleave(repeats, dim=1) for part in (key, value))
        scores = torch.tanh(query @ key.transpose(-1, -2) * (scale / softcap)) * softcap  # (b, H, L, L)
        attended = scores.float().masked_fill(~seen, -torch.inf).softmax(-1).to(query.dtype) @ value
    return attended.transpose(1, 2).flatten(0, 1)
