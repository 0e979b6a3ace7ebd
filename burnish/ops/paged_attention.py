"""Attention over keys and values that lie in the blocks of a pool, for generation: no gradients.

Consumes the queries, keys and values of a packed line of tokens, one layer's pool (`LayerKV`) and what says which
token belongs to which sequence (`Paged`); hands on the attention output in the order of the line. On a GPU the work
is done by the kernels of `burnish.ops.triton.paged_attention`; the functions here are the CPU path and what the
kernels are compared with.

Notation: T tokens in the line, B sequences, H query heads, Hkv key-value heads, G = H / Hkv, D head size, N blocks of
S tokens, M blocks per row of the tables.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

# How decode rows share a call on a CPU. A row with this many numbers of keys is worth calls of its own: no padding,
# no mask, and its keys and values stay in the cache between the gather and the products.
ALONE = 2**14
GROUP = 2**17  # numbers of keys in one group of shorter rows, so that they stay in the cache as well
PADDING = 1.25  # longest row of a group over its shortest


@dataclass
class LayerKV:
    """One layer's share of the KV pool. Its tensors are exchanged when the pool is freed and made again.

    The kernels take the places of keys and values from `addresses`, not from their tensors: a captured CUDA graph
    then goes on working with a new pool as soon as the new addresses are written there.
    """

    keys: Tensor  # (N, S, Hkv, D)
    values: Tensor  # (N, S, Hkv, D)
    addresses: Tensor | None = None  # (2,) int64 on the GPU: data_ptr of keys and values


@dataclass(frozen=True)
class Paged:
    """Which tokens of a packed line belong to which sequence, and where their keys and values lie.

    The tokens of a sequence in the line are its last ones: the last of them has position `lengths - 1`. Block 0
    belongs to nobody: the keys and values of padding tokens go to slot 0.
    """

    slots: Tensor  # (T,) int64: block * S + offset where the key and value of each token go
    tables: Tensor  # (B, M) int32: blocks of each sequence in order; entries past its length are not read
    lengths: Tensor  # (B,) int32: tokens of each sequence with keys and values once this line is stored, at least 1
    starts: Tensor | None  # (B+1,) int32: first token of each sequence in the line; None: one token each, T == B
    longest_query: int = 1  # at least as many tokens as any sequence has in this line
    longest: int = 0  # at least as many tokens as any of `lengths`


def store(kv: LayerKV, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Put keys and values (T, Hkv, D) into the pool at `slots` (T,)."""
    if key.is_cuda:
        from burnish.ops.triton.paged_attention import store as launch_store

        launch_store(kv, slots, key, value)
        return
    store_torch(kv, slots, key, value)


def store_torch(kv: LayerKV, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """`store` in plain torch, on any device."""
    for pool, new in ((kv.keys, key), (kv.values, value)):
        pool.view(-1, *pool.shape[2:]).index_copy_(0, slots, new)


def paged_attention(
    query: Tensor, kv: LayerKV, where: Paged, *, scale: float, window: int | None = None, softcap: float | None = None
) -> Tensor:
    """Attention output (T, H, D) of `query` (T, H, D) over the stored keys and values of each token's own sequence.

    The token at position p attends to positions max(0, p - window + 1) .. p. With `softcap` a score s becomes
    softcap * tanh(s / softcap).
    """
    if query.is_cuda:
        from burnish.ops.triton.paged_attention import paged_attention as launch

        return launch(query, kv, where, scale=scale, window=window, softcap=softcap)
    return paged_attention_torch(query, kv, where, scale=scale, window=window, softcap=softcap)


@torch.no_grad()
def paged_attention_torch(
    query: Tensor, kv: LayerKV, where: Paged, *, scale: float, window: int | None = None, softcap: float | None = None
) -> Tensor:
    """`paged_attention` in plain torch, on any device."""
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    lengths = where.lengths.tolist()
    if where.starts is None:
        tokens = list(range(len(lengths)))
        _decode(out, query, kv, where.tables, lengths, tokens, tokens, scale, window, softcap)
        return out
    starts = where.starts.tolist()
    single: list[int] = []
    for row, length in enumerate(lengths):
        count = starts[row + 1] - starts[row]
        if count == 1:
            single.append(row)
        elif count > 1:
            part = slice(starts[row], starts[row + 1])
            out[part] = _prefill(query[part], kv, where.tables[row], length, scale, window, softcap)
    if single:
        tokens = [starts[row] for row in single]
        _decode(out, query, kv, where.tables, lengths, single, tokens, scale, window, softcap)
    return out


def _decode(
    out: Tensor,
    query: Tensor,
    kv: LayerKV,
    tables: Tensor,
    lengths: list[int],
    rows: list[int],
    tokens: list[int],
    scale: float,
    window: int | None,
    softcap: float | None,
) -> None:
    """Write to out[tokens] the attention of the one query token of each of `rows`."""
    heads, size = kv.keys.shape[2:]
    query = query.unflatten(1, (heads, -1))  # (T, Hkv, G, D): the queries of one key-value head go through one product
    out = out.view(query.shape)
    scaled = query.float() * scale
    spans = [min(lengths[row], window or lengths[row]) for row in rows]  # tokens that each row attends to
    for group in _groups(spans, heads * size):
        if len(group) == 1:
            row, token, span = rows[group[0]], tokens[group[0]], spans[group[0]]
            keys, values = _span(kv, tables[row], lengths[row] - span, lengths[row])  # (L, Hkv, D)
            scores = torch.bmm(scaled[token], keys.permute(1, 2, 0).float())  # (Hkv, G, L)
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            out[token] = torch.bmm(scores.softmax(-1), values.transpose(0, 1).float())
            continue
        at = torch.tensor([(rows[i], tokens[i], lengths[rows[i]], spans[i]) for i in group], device=query.device)
        row_ids, token_ids, ends, counts = at.unbind(1)  # (b,)
        keys, values, mask = _padded(kv, tables[row_ids], ends, counts, spans[group[0]])  # (b, L, Hkv, D), (b, L)
        keys, values, mask = keys.transpose(1, 2), values.transpose(1, 2), mask[:, None, None]
        out[token_ids] = _attend(query[token_ids], keys, values, mask, scale, softcap)


def _groups(spans: list[int], width: int) -> Iterator[list[int]]:
    """Places in `spans` that share a call, longest first in each group; `width` numbers of keys per token."""
    order = sorted(range(len(spans)), key=spans.__getitem__, reverse=True)
    group: list[int] = []
    for place in order:
        if group:
            longest = spans[group[0]]
            full = (len(group) + 1) * longest * width > GROUP
            if full or longest * width >= ALONE or longest > spans[place] * PADDING + 8:
                yield group
                group = []
        group.append(place)
    if group:
        yield group


def _span(kv: LayerKV, table: Tensor, first: int, end: int) -> tuple[Tensor, Tensor]:
    """Keys and values (L, Hkv, D) of the positions first .. end - 1 of the sequence with blocks `table` (M,)."""
    blocks, size, heads, width = kv.keys.shape
    begin = first // size
    used = table[begin : -(-end // size)]
    keys = kv.keys.view(blocks, -1).index_select(0, used).view(-1, heads, width)
    values = kv.values.view(blocks, -1).index_select(0, used).view(-1, heads, width)
    part = slice(first - begin * size, end - begin * size)
    return keys[part], values[part]


def _padded(kv: LayerKV, tables: Tensor, ends: Tensor, counts: Tensor, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values (b, L, Hkv, D) of the last `counts` (b,) positions before `ends`, and which are real (b, L).

    Padding repeats a row's own last token, so that nothing of another sequence is read: a NaN there would pass
    through a mask.
    """
    size, *head = kv.keys.shape[1:]
    steps = torch.arange(longest, device=ends.device)
    positions = torch.minimum(steps + (ends - counts)[:, None], ends[:, None] - 1)  # (b, L)
    slots = (tables.gather(1, positions // size) * size + positions % size).flatten()
    keys = kv.keys.view(-1, head[0] * head[1]).index_select(0, slots).view(*positions.shape, *head)
    values = kv.values.view(-1, head[0] * head[1]).index_select(0, slots).view(*positions.shape, *head)
    return keys, values, steps < counts[:, None]


def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Attention of q (b, h, n, D) over keys and values (b, h, L, D) where `mask` (b or 1, 1, n or 1, L) is true."""
    if softcap is None:
        mask = mask.expand(mask.shape[0], 1, q.shape[2], mask.shape[3])
        return scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale)
    scores = softcap * torch.tanh(q.float() @ keys.transpose(2, 3).float() * (scale / softcap))
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return (weights @ values.float()).to(q.dtype)


def _prefill(
    query: Tensor, kv: LayerKV, table: Tensor, length: int, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    """Attention (n, H, D) of the last n tokens of one sequence, `query` (n, H, D)."""
    n, heads, size = query.shape
    first = max(0, length - n - window + 1) if window else 0
    keys, values = _span(kv, table, first, length)  # (L, Hkv, D)
    groups = heads // keys.shape[1]
    q = query.view(n, -1, groups, size).permute(1, 2, 0, 3)  # (Hkv, G, n, D)
    keys = keys.transpose(0, 1)[:, None].expand(-1, groups, -1, -1)  # (Hkv, G, L, D) without a copy for each of G
    values = values.transpose(0, 1)[:, None].expand(-1, groups, -1, -1)
    if first == 0 and n == length and softcap is None and (window is None or window >= n):
        attended = scaled_dot_product_attention(q, keys, values, is_causal=True, scale=scale)
    else:
        at = torch.arange(length - n, length, device=query.device)[:, None]  # (n, 1)
        seen = torch.arange(first, length, device=query.device)  # (L,)
        mask = seen <= at
        if window:
            mask &= seen > at - window
        attended = _attend(q, keys, values, mask[None, None], scale, softcap)
    return attended.permute(2, 0, 1, 3).reshape(n, heads, size)
