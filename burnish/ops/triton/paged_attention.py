"""Attention over the blocks of the KV pool on the GPU: a store, a decode and a prefill kernel.

Consumes and returns what `burnish.ops.paged_attention` says. The pool's addresses are read on the device, so that a
captured graph survives a pool that was freed and allocated elsewhere. The query heads of one key-value head are rows
of one tile, so that keys and values are read once for all of them. Softmax is kept online in float32, in powers of
two. Nothing past the length of a sequence is read: neither table entries nor slots.

Decode reads each key once and is bound by memory: a program takes one sequence and one key-value head, or a split of
its tokens where there are too few such programs to fill the GPU; `_combine` then joins the splits.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from burnish.ops.paged_attention import LayerKV, Paged

LOG2_E = 1.4426950408889634
PROGRAMS = 512  # decode programs that fill a GPU of about 130 processors
SPLITS = 64  # at most, so that one program can join them


class Shape(NamedTuple):
    rows: int  # queries in a tile
    tile: int  # tokens of keys and values per step
    warps: int
    stages: int  # steps of loads that are on their way, and one in use

    def arguments(self) -> dict[str, int]:
        return {"ROWS": self.rows, "TILE": self.tile, "num_warps": self.warps, "num_stages": self.stages}


def decode_shape(group: int, size: int, itemsize: int) -> Shape:
    """Layout of decode for `group` query heads per key-value head of `size` numbers of `itemsize` bytes.

    Bound by memory: several small programs on a processor hide each other's products, and each has two steps of
    loads, of at most 32 KB, on their way.
    """
    rows = max(16, triton.next_power_of_2(group))  # a tensor core takes no fewer than 16
    budget = 2**15 if itemsize == 2 else 2**14  # float32 products are unrolled into registers: less of them at a time
    tile = min(128, max(16, budget // (2 * size * itemsize)))
    return Shape(rows, tile, warps=4 if rows <= 64 else 8, stages=3)


def prefill_shape(lines: int, size: int, itemsize: int) -> Shape:
    """Layout of prefill where no sequence has more than `lines` queries (tokens times heads) per key-value head."""
    if itemsize == 4:
        return Shape(rows=32, tile=32, warps=4, stages=2) if size <= 128 else Shape(16, 16, warps=4, stages=2)
    if size > 128:
        return Shape(rows=64, tile=32, warps=4, stages=2)
    return Shape(rows=128, tile=64, warps=8, stages=3) if lines > 64 else Shape(64, 64, warps=4, stages=3)


def split_count(sequences: int, heads: int, longest: int, tile: int) -> int:
    """Splits of each sequence that decode needs to fill the GPU; none of less than one tile."""
    programs = max(1, sequences * heads)
    if 4 * programs >= 3 * PROGRAMS:  # filled well enough: not worth the second kernel
        return 1
    return max(1, min(-(-PROGRAMS // programs), -(-longest // tile), SPLITS))


@triton.jit
def _pools(addresses, like):
    """Base pointers of keys and values, of the type of the pointer `like`."""
    # Torch allocates on 512 bytes; said aloud, so that rows are read 16 bytes at a time.
    keys = tl.multiple_of(tl.load(addresses).to(like.dtype), 16)
    values = tl.multiple_of(tl.load(addresses + 1).to(like.dtype), 16)
    return keys, values


@triton.jit
def _capped(scores, scale, softcap, SOFTCAP: tl.constexpr):
    """Raw products to scores in powers of two: log2(e) is in `scale`, or in `softcap` where there is one."""
    if SOFTCAP:
        # tanh from exp2: `scale` holds 2 * log2(e) / softcap as well; runs into 1 and -1 at both ends without NaN.
        return softcap * (1.0 - 2.0 / (tl.exp2(scores * scale) + 1.0))
    return scores * scale


@triton.jit
def _store(
    key,  # (T, Hkv, D)
    value,  # (T, Hkv, D)
    addresses,  # (2,) int64
    slots,  # (T,) int64
    key_token,
    key_head,
    value_token,
    value_head,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    keys, values = _pools(addresses, key)
    token = tl.program_id(0).to(tl.int64)
    target = tl.load(slots + token) * (KV_HEADS * SIZE)
    place = tl.arange(0, WIDTH)
    head, inside = place // SIZE, place % SIZE
    mask = place < KV_HEADS * SIZE
    k = tl.load(key + token * key_token + head * key_head + inside, mask=mask)
    tl.store(keys + target + place, k, mask=mask)
    v = tl.load(value + token * value_token + head * value_head + inside, mask=mask)
    tl.store(values + target + place, v, mask=mask)


def store(kv: LayerKV, slots: Tensor, key: Tensor, value: Tensor) -> None:
    tokens, heads, size = key.shape
    if tokens:
        width = triton.next_power_of_2(heads * size)
        strides = key.stride(0), key.stride(1), value.stride(0), value.stride(1)
        _store[(tokens,)](
            key, value, _addresses(kv), slots, *strides, heads, size, width, num_warps=4 if width >= 1024 else 1
        )


@triton.jit(do_not_specialize=["table_row", "window"])
def _decode(
    query,  # (B, H, D)
    addresses,  # (2,) int64
    tables,  # (B, M) int32
    lengths,  # (B,) int32
    out,  # (B, H, D), or (B, H, splits, D) float32
    weights,  # (B, H, splits) float32: log2 of the sum of exponentials of each split
    query_token,
    query_head,
    table_row,
    scale,
    softcap,
    window,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads per key-value head
    ROWS: tl.constexpr,  # the same, padded
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,  # head size, padded
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,  # whether there is one
    SOFTCAP: tl.constexpr,
    SPLIT: tl.constexpr,
):
    keys, values = _pools(addresses, query)
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    end = tl.load(lengths + row)
    first = 0
    if WINDOW:
        first = tl.maximum(end - window, 0)
    if SPLIT:
        per_split = tl.cdiv(tl.cdiv(end - first, TILE), splits) * TILE
        first += split * per_split
        end = tl.minimum(end, first + per_split)

    group = tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
    inside = tl.arange(0, PADDED)[None, :]  # (1, PADDED)
    step = tl.arange(0, TILE)
    head = kv_head * GROUP + group
    row_mask = (group < GROUP) & (inside < SIZE)
    q = tl.load(query + row * query_token + head * query_head + inside, mask=row_mask, other=0.0)  # (ROWS, PADDED)
    keys += kv_head * SIZE
    values += kv_head * SIZE
    table = tables + row * table_row

    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, PADDED), tl.float32)
    # The blocks of the next tile are loaded a step ahead, so that the loads of keys need not wait for the table.
    block = tl.load(table + (first + step) // BLOCK, mask=first + step < end, other=0)  # (TILE,)
    for start in range(first, end, TILE):
        position = start + step  # (TILE,)
        valid = position < end
        place = (block.to(tl.int64) * BLOCK + position % BLOCK)[:, None] * (KV_HEADS * SIZE) + inside  # (TILE, PADDED)
        block = tl.load(table + (position + TILE) // BLOCK, mask=position + TILE < end, other=0)
        mask = valid[:, None]
        if PADDED != SIZE:
            mask = mask & (inside < SIZE)
        k = tl.load(keys + place, mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (ROWS, TILE)
        scores = tl.where(valid[None, :], _capped(scores, scale, softcap, SOFTCAP), float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(values + place, mask=mask, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = new_top

    if SPLIT:
        at = (row * (KV_HEADS * GROUP) + head) * splits + split  # (ROWS, 1)
        some = first < end  # a sequence too short for all the splits leaves the last ones empty
        tl.store(out + at * SIZE + inside, acc / total[:, None], mask=row_mask & some)
        weight = tl.where(some, top + tl.log2(total), float("-inf"))
        tl.store(weights + at, weight[:, None], mask=group < GROUP)
    else:
        at = row * (KV_HEADS * GROUP) + head
        tl.store(out + at * SIZE + inside, (acc / total[:, None]).to(out.dtype.element_ty), mask=row_mask)


@triton.jit(do_not_specialize=["splits"])
def _combine(
    parts,  # (B, H, splits, D) float32
    weights,  # (B, H, splits) float32
    out,  # (B, H, D)
    splits,
    SPLITS: tl.constexpr,  # padded
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # of B * H
    split = tl.arange(0, SPLITS)
    inside = tl.arange(0, PADDED)[None, :]
    weight = tl.load(weights + row * splits + split, mask=split < splits, other=float("-inf"))
    share = tl.exp2(weight - tl.max(weight, 0))
    share = (share / tl.sum(share, 0))[:, None]  # (SPLITS, 1)
    at = (row * splits + split)[:, None] * SIZE + inside
    part = tl.load(parts + at, mask=(share > 0) & (inside < SIZE), other=0.0)  # empty splits were not written
    joined = tl.sum(part * share, 0)[None, :]
    tl.store(out + row * SIZE + inside, joined.to(out.dtype.element_ty), mask=inside < SIZE)


@triton.jit(do_not_specialize=["sequences", "search_steps", "table_row", "window"])
def _prefill(
    query,  # (T, H, D)
    addresses,  # (2,) int64
    tables,  # (B, M) int32
    lengths,  # (B,) int32
    starts,  # (B+1,) int32
    out,  # (T, H, D)
    sequences,
    search_steps,
    query_token,
    query_head,
    table_row,
    scale,
    softcap,
    window,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,  # query tokens times query heads of one key-value head in a tile
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    keys, values = _pools(addresses, query)
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    # Sequence b is given the tiles from starts[b] * GROUP // ROWS + b on: enough for its rows whatever their number,
    # and known without a pass over the sequences. The last one that begins at or before this tile owns it.
    low, high = 0, sequences
    for _ in range(search_steps):
        middle = (low + high) // 2
        before = tl.load(starts + middle) * GROUP // ROWS + middle <= tile
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    begin = tl.load(starts + low)
    count = tl.load(starts + low + 1) - begin
    tile_first = (tile - (begin * GROUP // ROWS + low)) * ROWS
    if tile_first >= count * GROUP:
        return
    length = tl.load(lengths + low)

    line = tile_first + tl.arange(0, ROWS)  # (ROWS,): token * GROUP + head
    real = line < count * GROUP
    token = tl.minimum(line // GROUP, count - 1)
    inside = tl.arange(0, PADDED)[None, :]
    row_mask = real[:, None] & (inside < SIZE)
    at = (begin + token).to(tl.int64)[:, None]
    head = (kv_head * GROUP + line % GROUP)[:, None]
    q = tl.load(query + at * query_token + head * query_head + inside, mask=row_mask, other=0.0)  # (ROWS, PADDED)
    position = length - count + token  # (ROWS,)
    first = 0
    if WINDOW:
        first = tl.maximum(length - count + tile_first // GROUP - window + 1, 0)
    end = length - count + tl.minimum((tile_first + ROWS - 1) // GROUP, count - 1) + 1
    keys += kv_head * SIZE
    values += kv_head * SIZE
    table = tables + tl.cast(low, tl.int64) * table_row

    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, PADDED), tl.float32)
    step = tl.arange(0, TILE)
    block = tl.load(table + (first + step) // BLOCK, mask=first + step < end, other=0)  # a step ahead, as in decode
    for start in range(first, end, TILE):
        seen = start + step  # (TILE,)
        valid = seen < end
        place = (block.to(tl.int64) * BLOCK + seen % BLOCK)[:, None] * (KV_HEADS * SIZE) + inside  # (TILE, PADDED)
        block = tl.load(table + (seen + TILE) // BLOCK, mask=seen + TILE < end, other=0)
        mask = valid[:, None]
        if PADDED != SIZE:
            mask = mask & (inside < SIZE)
        k = tl.load(keys + place, mask=mask, other=0.0)
        scores = _capped(tl.dot(q, tl.trans(k), input_precision="ieee"), scale, softcap, SOFTCAP)  # (ROWS, TILE)
        causal = seen[None, :] <= position[:, None]
        if WINDOW:
            causal = causal & (seen[None, :] > position[:, None] - window)
        scores = tl.where(causal, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        # A row whose window has not begun yet has seen nothing: its exponents are kept from being inf - inf.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(values + place, mask=mask, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = new_top
    target = out + (at * (KV_HEADS * GROUP) + head) * SIZE + inside
    tl.store(target, (acc / total[:, None]).to(out.dtype.element_ty), mask=row_mask)


def paged_attention(
    query: Tensor, kv: LayerKV, where: Paged, *, scale: float, window: int | None = None, softcap: float | None = None
) -> Tensor:
    tokens, heads, size = query.shape
    block, kv_heads = kv.keys.shape[1:3]
    group = heads // kv_heads
    # Tokens past the last sequence of a prefill line are nobody's: zeros.
    out = query.new_zeros(query.shape) if where.starts is not None else query.new_empty(query.shape)
    if not tokens:
        return out
    layout = {"KV_HEADS": kv_heads, "GROUP": group, "SIZE": size, "PADDED": max(16, triton.next_power_of_2(size))}
    layout |= {"BLOCK": block, "WINDOW": bool(window), "SOFTCAP": softcap is not None}
    # What `_capped` multiplies with, and the window.
    numbers = (scale * LOG2_E, 0.0) if softcap is None else (scale * 2 * LOG2_E / softcap, softcap * LOG2_E)
    launch = _launch_decode if where.starts is None else _launch_prefill
    launch(query, out, kv, where, (*numbers, window or 0), layout)
    return out


def _launch_decode(
    query: Tensor, out: Tensor, kv: LayerKV, where: Paged, numbers: tuple[float, float, int], layout: dict[str, int]
) -> None:
    rows, heads, size = query.shape
    shape = decode_shape(layout["GROUP"], layout["PADDED"], query.element_size())
    longest = where.longest or where.tables.shape[1] * layout["BLOCK"]
    longest = min(longest, numbers[-1] or longest)
    splits = split_count(rows, layout["KV_HEADS"], longest, shape.tile)
    if splits > 1:
        parts = query.new_empty((rows, heads, splits, size), dtype=torch.float32)
        weights = query.new_empty((rows, heads, splits), dtype=torch.float32)
    else:
        parts = weights = out
    tensors = query, _addresses(kv), where.tables, where.lengths, parts, weights
    strides = query.stride(0), query.stride(1), where.tables.stride(0)
    _decode[(rows, layout["KV_HEADS"], splits)](
        *tensors, *strides, *numbers, **layout, **shape.arguments(), SPLIT=splits > 1
    )
    if splits > 1:
        padded = triton.next_power_of_2(splits)
        _combine[(rows * heads,)](parts, weights, out, splits, padded, size, layout["PADDED"], num_warps=2)


def _launch_prefill(
    query: Tensor, out: Tensor, kv: LayerKV, where: Paged, numbers: tuple[float, float, int], layout: dict[str, int]
) -> None:
    assert where.starts is not None
    sequences = len(where.lengths)
    group = layout["GROUP"]
    shape = prefill_shape(where.longest_query * group, layout["PADDED"], query.element_size())
    tiles = -(-query.shape[0] * group // shape.rows) + sequences  # see `_prefill`
    tensors = query, _addresses(kv), where.tables, where.lengths, where.starts, out
    strides = query.stride(0), query.stride(1), where.tables.stride(0)
    _prefill[(tiles, layout["KV_HEADS"])](
        *tensors, sequences, sequences.bit_length(), *strides, *numbers, **layout, **shape.arguments()
    )


def _addresses(kv: LayerKV) -> Tensor:
    if kv.addresses is None:
        raise ValueError("LayerKV.addresses is None: the kernels find keys and values through it")
    return kv.addresses
