"""Attention over keys and values in the blocks of a pool, for generation: no gradients.

On a GPU the kernels of `burnish.ops.triton.paged_attention` do the work; the functions here are the CPU path.
Notation: T tokens in the line, B sequences, H query heads, Hkv key-value heads, G = H / Hkv, D head size, N blocks of
S tokens, M blocks per row of the tables.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

BLOCK_SIZE = 16  # tokens in a block of a pool, where nothing else is asked for

# How rows with one query token share a call on a CPU.
GROUP = 2**18  # numbers of keys in one group, so that they stay in the cache between the gather and the products
PADDING = 1.25  # longest row of a group over its shortest


@dataclass
class LayerKV:
    """One layer's share of the KV pool. Its tensors are exchanged when the pool is freed and made again: kernels go by
    `addresses`, so that a captured CUDA graph works with the new ones."""

    keys: Tensor  # (N, S, Hkv, D)
    values: Tensor  # (N, S, Hkv, D)
    addresses: Tensor | None = None  # (2,) int64 on the GPU: data_ptr of keys and values


@dataclass(frozen=True)
class Paged:
    """Which tokens of a packed line belong to which sequence, and where their keys and values are.

    The tokens of a sequence in the line are its last ones: the last of them has position `lengths - 1`. Block 0
    belongs to nobody: the keys and values of padding tokens go to slot 0.
    """

    slots: Tensor  # (T,) int64: block * S + offset where the key and value of each token go
    tables: Tensor  # (B, M) int32: blocks of each sequence in order; entries past its length are not read
    lengths: Tensor  # (B,) int32: tokens of each sequence with keys and values once this line is stored, at least 1
    starts: Tensor | None  # (B+1,) int32: first token of each sequence in the line; None: one token each, T == B
    longest_query: int = 1  # at least as many tokens as any sequence has in this line
    longest: int = 0  # at least as many tokens as any of `lengths`
    plans: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)  # what the CPU path works out once


def store(kv: LayerKV, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Put keys and values (T, Hkv, D) into the pool at `slots` (T,)."""
    if key.is_cuda:
        from burnish.ops.triton.paged_attention import store as launch_store

        launch_store(kv, slots, key, value)
        return
    store_torch(kv, slots, key, value)


def store_torch(kv: LayerKV, slots: Tensor, key: Tensor, value: Tensor) -> None:
    for pool, new in ((kv.keys, key), (kv.values, value)):
        pool.view(-1, *pool.shape[2:]).index_copy_(0, slots, new)


def paged_attention(
    query: Tensor, kv: LayerKV, where: Paged, *, scale: float, window: int | None = None, softcap: float | None = None
) -> Tensor:
    """Attention output (T, H, D) of `query` (T, H, D) over the stored keys and values of each token's own sequence, of
    position p to max(0, p - window + 1) .. p. With `softcap` a score s becomes softcap * tanh(s / softcap)."""
    if query.is_cuda:
        from burnish.ops.triton.paged_attention import paged_attention as launch

        return launch(query, kv, where, scale=scale, window=window, softcap=softcap)
    return paged_attention_torch(query, kv, where, scale=scale, window=window, softcap=softcap)


@torch.no_grad()
def paged_attention_torch(
    query: Tensor, kv: LayerKV, where: Paged, *, scale: float, window: int | None = None, softcap: float | None = None
) -> Tensor:
    key = (window, kv.keys.shape[1:])
    if key not in where.plans:
        where.plans[key] = _plan(where, kv, window)
    plan: _AttentionPlan = where.plans[key]
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    for row, start, stop, length in plan.read:
        out[start:stop] = _prefill(query[start:stop], kv, where.tables[row], length, scale, window, softcap)
    if plan.groups:
        _decode(out, query, kv, plan, scale, softcap)
    return out


@dataclass(frozen=True)
class _DecodeGroup:
    """Rows with one query token that share a call: those at `part` of the plan's order."""

    part: slice
    slots: Tensor  # (b * L,) where their keys and values are
    width: int  # L
    mask: Tensor  # (b, 1, 1, L): 0 where a token is real, else -inf


@dataclass(frozen=True)
class _AttentionPlan:
    """How the sequences of a line are attended for on a CPU; the same for all layers with one window."""

    read: list[tuple[int, int, int, int]]  # sequences of several tokens: row, first token, end, length
    order: Tensor  # (n,) the other tokens of the line, in the order of `groups`
    groups: list[_DecodeGroup]


def _plan(where: Paged, kv: LayerKV, window: int | None) -> _AttentionPlan:
    block, heads, size = kv.keys.shape[1:]
    lengths = where.lengths.tolist()
    starts = list(range(len(lengths) + 1)) if where.starts is None else where.starts.tolist()
    bounds = list(zip(lengths, starts, starts[1:], strict=False))
    read = [(row, start, stop, length) for row, (length, start, stop) in enumerate(bounds) if stop - start > 1]
    rows = [row for row, (_, start, stop) in enumerate(bounds) if stop - start == 1]
    spans = [min(lengths[row], window or lengths[row]) for row in rows]  # tokens that each row attends to
    order: list[int] = []
    groups: list[_DecodeGroup] = []
    for places in _groups(spans, heads * size):
        part = slice(len(order), len(order) + len(places))
        order += [starts[rows[place]] for place in places]
        longest = spans[places[0]]
        at = torch.tensor([(rows[place], lengths[rows[place]], spans[place]) for place in places])
        row_ids, ends, counts = at.unbind(1)  # (b,)
        slots, mask = _padded(where.tables[row_ids], ends, counts, longest, block)
        groups.append(_DecodeGroup(part, slots, longest, mask[:, None, None]))
    return _AttentionPlan(read, torch.tensor(order, dtype=torch.long), groups)


def _groups(spans: list[int], width: int) -> Iterator[list[int]]:
    """Places in `spans` that share a call, longest first in each group; `width` numbers of keys per token."""
    order = sorted(range(len(spans)), key=spans.__getitem__, reverse=True)
    group: list[int] = []
    for place in order:
        if group:
            longest = spans[group[0]]
            full = (len(group) + 1) * longest * width > GROUP
            if full or longest > spans[place] * PADDING + 8:
                yield group
                group = []
        group.append(place)
    if group:
        yield group


def _padded(tables: Tensor, ends: Tensor, counts: Tensor, longest: int, block: int) -> tuple[Tensor, Tensor]:
    """Slots (b * L,) of the last `counts` (b,) positions before `ends`, and 0 or -inf (b, L) for real and padding,
    which repeats a row's own last token: a NaN of another sequence would pass through a mask."""
    steps = torch.arange(longest)
    positions = torch.minimum(steps + (ends - counts)[:, None], ends[:, None] - 1)  # (b, L)
    slots = (tables.gather(1, positions // block) * block + positions % block).flatten()
    return slots, torch.zeros(positions.shape).masked_fill_(steps >= counts[:, None], -torch.inf)


def _decode(out: Tensor, query: Tensor, kv: LayerKV, plan: _AttentionPlan, scale: float, softcap: float | None) -> None:
    """Write to `out` (T, H, D) the attention of tokens that are the only ones of their sequence in the line."""
    heads, size = kv.keys.shape[2:]
    keys, values = kv.keys.view(-1, heads * size), kv.values.view(-1, heads * size)
    # (n, Hkv, G, D): the queries of one key-value head go through one product
    sorted_query = query.index_select(0, plan.order).unflatten(1, (heads, -1))
    attended = []
    for group in plan.groups:
        form = (-1, group.width, heads, size)
        own_keys = keys.index_select(0, group.slots).view(form).transpose(1, 2)  # (b, Hkv, L, D)
        own_values = values.index_select(0, group.slots).view(form).transpose(1, 2)
        attended.append(_attend(sorted_query[group.part], own_keys, own_values, group.mask, scale, softcap))
    out.index_copy_(0, plan.order, torch.cat(attended).flatten(1, 2))


def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Attention of q (b, h, n, D) over keys and values (b, h, L, D) with `mask` (b or 1, 1, n or 1, L) on scores."""
    if softcap is None:
        mask = mask.to(q.dtype).expand(mask.shape[0], 1, q.shape[2], mask.shape[3])
        return scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale)
    scores = softcap * torch.tanh(q.float() @ keys.transpose(2, 3).float() * (scale / softcap))
    return ((scores + mask).softmax(-1) @ values.float()).to(q.dtype)


def _prefill(
    query: Tensor, kv: LayerKV, table: Tensor, length: int, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    """Attention (n, H, D) of the last n tokens of one sequence, `query` (n, H, D)."""
    n, heads, size = query.shape
    first = max(0, length - n - window + 1) if window else 0
    block, *head = kv.keys.shape[1:]
    begin = first // block
    used, part = table[begin : -(-length // block)], slice(first - begin * block, length - begin * block)
    pools = (pool.view(len(pool), -1).index_select(0, used) for pool in (kv.keys, kv.values))
    keys, values = (pool.view(-1, *head)[part] for pool in pools)  # (L, Hkv, D), of positions first .. length - 1
    groups = heads // keys.shape[1]
    q = query.view(n, -1, groups, size).permute(1, 2, 0, 3)  # (Hkv, G, n, D)
    keys = keys.transpose(0, 1)[:, None].expand(-1, groups, -1, -1)  # (Hkv, G, L, D) without a copy for each of G
    values = values.transpose(0, 1)[:, None].expand(-1, groups, -1, -1)
    if first == 0 and n == length and softcap is None and (window is None or window >= n):
        attended = scaled_dot_product_attention(q, keys, values, is_causal=True, scale=scale)
    else:
        at = torch.arange(length - n, length, device=query.device)[:, None]  # (n, 1)
        seen = torch.arange(first, length, device=query.device)  # (L,)
        hidden = seen > at
        if window:
            hidden |= seen <= at - window
        mask = torch.zeros(hidden.shape, device=query.device).masked_fill_(hidden, -torch.inf)
        attended = _attend(q, keys, values, mask[None, None], scale, softcap)
    return attended.permute(2, 0, 1, 3).reshape(n, heads, size)
