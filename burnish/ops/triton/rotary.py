"""Head norms and rotation on the GPU, in one launch: into the KV pool for inference, into tensors for training.

A program takes some heads of one token: query, key and value heads alike, distinguished by masks. The pool's addresses
are read on the device, so that a captured graph survives a pool that was freed and allocated elsewhere.

Backward, one launch too. A rotation needs nothing of its input; only where there are head norms is it kept, and a
program takes every so many tokens to sum the gradients of their weights.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE = 1024  # numbers of one half of the heads that a program takes: 16 heads of 128
PROGRAMS = 660  # of the backward kernel with head norms: as many as the 132 processors of an H200 hold at once


@triton.jit
def _head_norm(first, second, is_query, q_norm, k_norm, places, inside, eps, dtype: tl.constexpr, SIZE: tl.constexpr):
    """Both halves of each head, normed over the head and rounded as HF does."""
    scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / SIZE + eps)[:, None]
    half: tl.constexpr = SIZE // 2
    q_first = tl.load(q_norm + places, mask=inside, other=0.0).to(tl.float32)[None, :]
    q_second = tl.load(q_norm + half + places, mask=inside, other=0.0).to(tl.float32)[None, :]
    k_first = tl.load(k_norm + places, mask=inside, other=0.0).to(tl.float32)[None, :]
    k_second = tl.load(k_norm + half + places, mask=inside, other=0.0).to(tl.float32)[None, :]
    first = (first * scale).to(dtype).to(tl.float32) * tl.where(is_query, q_first, k_first)
    second = (second * scale).to(dtype).to(tl.float32) * tl.where(is_query, q_second, k_second)
    return first.to(dtype).to(tl.float32), second.to(dtype).to(tl.float32)


@triton.jit
def _tables(cos, sin, places, inside, SIZE: tl.constexpr):
    """Rows of the tables at `cos` and `sin`, each in its halves: (1, HALF_BLOCK)."""
    half: tl.constexpr = SIZE // 2
    cos_first = tl.load(cos + places, mask=inside, other=0.0).to(tl.float32)[None, :]
    cos_second = tl.load(cos + half + places, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin_first = tl.load(sin + places, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin_second = tl.load(sin + half + places, mask=inside, other=0.0).to(tl.float32)[None, :]
    return cos_first, cos_second, sin_first, sin_second


@triton.jit
def _turned(first, second, cos, sin, places, inside, dtype: tl.constexpr, SIZE: tl.constexpr):
    """Both halves of each head, rotated by the rows at `cos` and `sin`."""
    cos_first, cos_second, sin_first, sin_second = _tables(cos, sin, places, inside, SIZE)
    # HF evaluates in the model's dtype: both products are rounded before they are added.
    turned_first = (first * cos_first).to(dtype).to(tl.float32) + (second * sin_first).to(dtype).to(tl.float32)
    turned_second = (second * cos_second).to(dtype).to(tl.float32) + (first * sin_second).to(dtype).to(tl.float32)
    return turned_first.to(dtype), turned_second.to(dtype)


@triton.jit
def _forward_kernel(
    qkv,  # (T, (H+2*Hkv)*D)
    cos,  # (P, D) where POOL, else (T, D)
    sin,  # like cos, first half negated
    q_norm,  # (D,)
    k_norm,  # (D,)
    query,  # (T, H, D)
    key,  # (T, Hkv, D), written unless POOL
    value,  # (T, Hkv, D), written where VALUES unless POOL
    addresses,  # (2,) int64, read where POOL, as the two after it: where the pool's keys and values are
    slots,  # (T,) int64: where keys and values go in the pool
    positions,  # (T,) int64: rows of cos and sin
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    POOL: tl.constexpr,
    VALUES: tl.constexpr,
):
    dtype = query.dtype.element_ty
    half: tl.constexpr = SIZE // 2
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)[:, None]  # (GROUP, 1)
    places = tl.arange(0, HALF_BLOCK)  # (HALF_BLOCK,)
    in_half = places < half
    mask = (head < HEADS + KV_HEADS * (2 if VALUES else 1)) & in_half[None, :]

    source = qkv + token * (HEADS + 2 * KV_HEADS) * SIZE + head * SIZE + places[None, :]
    raw_first = tl.load(source, mask=mask, other=0.0)
    raw_second = tl.load(source + half, mask=mask, other=0.0)
    first, second = raw_first.to(tl.float32), raw_second.to(tl.float32)
    if NORM:
        first, second = _head_norm(first, second, head < HEADS, q_norm, k_norm, places, in_half, eps, dtype, SIZE)
    row = (tl.load(positions + token) if POOL else token) * SIZE
    turned_first, turned_second = _turned(first, second, cos + row, sin + row, places, in_half, dtype, SIZE)

    target = query + token * HEADS * SIZE + head * SIZE + places[None, :]
    is_query = mask & (head < HEADS)
    tl.store(target, turned_first, mask=is_query)
    tl.store(target + half, turned_second, mask=is_query)
    # Allocations are aligned; stated here because an address that comes from memory tells the compiler nothing.
    keys = tl.multiple_of(tl.load(addresses).to(tl.pointer_type(dtype)), 16) if POOL else key
    slot = (tl.load(slots + token) if POOL else token) * KV_HEADS * SIZE
    target = keys + slot + (head - HEADS) * SIZE + places[None, :]
    is_key = mask & (head >= HEADS) & (head < HEADS + KV_HEADS)
    tl.store(target, turned_first, mask=is_key)
    tl.store(target + half, turned_second, mask=is_key)
    if VALUES:
        values = tl.multiple_of(tl.load(addresses + 1).to(tl.pointer_type(dtype)), 16) if POOL else value
        target = values + slot + (head - HEADS - KV_HEADS) * SIZE + places[None, :]
        is_value = mask & (head >= HEADS + KV_HEADS)
        tl.store(target, raw_first, mask=is_value)
        tl.store(target + half, raw_second, mask=is_value)


@triton.jit(do_not_specialize=["tokens"])
def _backward_kernel(
    d_query,  # (T, H, D)
    d_key,  # (T, Hkv, D)
    d_value,  # (T, Hkv, D)
    qkv,  # (T, (H+2*Hkv)*D), read where NORM
    cos,  # (T, D)
    sin,  # (T, D), first half negated
    q_norm,  # (D,)
    k_norm,  # (D,)
    out,  # (T, (H+2*Hkv)*D): gradient of qkv
    sums,  # (programs, groups, 2, D) float32, written where NORM: gradients of q_norm and k_norm from each program
    tokens,
    eps,
    query_row,  # strides: of a token, of a head
    query_head,
    key_row,
    key_head,
    value_row,
    value_head,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    NORM: tl.constexpr,
):
    dtype = out.dtype.element_ty
    half: tl.constexpr = SIZE // 2
    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)[:, None]  # (GROUP, 1)
    places = tl.arange(0, HALF_BLOCK)  # (HALF_BLOCK,)
    in_half = places < half
    mask = (head < HEADS + 2 * KV_HEADS) & in_half[None, :]
    is_query = mask & (head < HEADS)
    is_key = mask & (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_value = mask & (head >= HEADS + KV_HEADS)
    wide = head.to(tl.int64)  # the stride of a head may be as long as the line
    from_query = d_query + wide * query_head + places[None, :]
    from_key = d_key + (wide - HEADS) * key_head + places[None, :]
    from_value = d_value + (wide - HEADS - KV_HEADS) * value_head + places[None, :]
    if NORM:
        q_first = tl.load(q_norm + places, mask=in_half, other=0.0).to(tl.float32)[None, :]
        q_second = tl.load(q_norm + half + places, mask=in_half, other=0.0).to(tl.float32)[None, :]
        k_first = tl.load(k_norm + places, mask=in_half, other=0.0).to(tl.float32)[None, :]
        k_second = tl.load(k_norm + half + places, mask=in_half, other=0.0).to(tl.float32)[None, :]
        weight_first = tl.where(head < HEADS, q_first, k_first)  # (GROUP, HALF_BLOCK)
        weight_second = tl.where(head < HEADS, q_second, k_second)
        sum_first = tl.zeros((GROUP, HALF_BLOCK), tl.float32)  # of each head: added over heads at the end
        sum_second = tl.zeros((GROUP, HALF_BLOCK), tl.float32)

    for index in tl.range(tl.program_id(0), tokens, tl.num_programs(0)):
        token = tl.cast(index, tl.int64)
        start = from_query + token * query_row
        d_first = tl.load(start, mask=is_query, other=0.0).to(tl.float32)
        d_second = tl.load(start + half, mask=is_query, other=0.0).to(tl.float32)
        start = from_key + token * key_row
        d_first += tl.load(start, mask=is_key, other=0.0).to(tl.float32)
        d_second += tl.load(start + half, mask=is_key, other=0.0).to(tl.float32)
        start = from_value + token * value_row
        value_first = tl.load(start, mask=is_value, other=0.0)
        value_second = tl.load(start + half, mask=is_value, other=0.0)

        cos_first, cos_second, sin_first, sin_second = _tables(
            cos + token * SIZE, sin + token * SIZE, places, in_half, SIZE
        )
        before_first = d_first * cos_first + d_second * sin_second
        before_second = d_second * cos_second + d_first * sin_first
        place = token * (HEADS + 2 * KV_HEADS) * SIZE + head * SIZE + places[None, :]
        if NORM:
            turned = is_query | is_key
            first = tl.load(qkv + place, mask=turned, other=0.0).to(tl.float32)
            second = tl.load(qkv + place + half, mask=turned, other=0.0).to(tl.float32)
            scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / SIZE + eps)[:, None]
            first *= scale
            second *= scale
            sum_first += before_first * first
            sum_second += before_second * second
            before_first *= weight_first
            before_second *= weight_second
            mean = ((tl.sum(before_first * first, 1) + tl.sum(before_second * second, 1)) / SIZE)[:, None]
            before_first = scale * (before_first - first * mean)
            before_second = scale * (before_second - second * mean)
        tl.store(out + place, tl.where(is_value, value_first, before_first.to(dtype)), mask=mask)
        tl.store(out + place + half, tl.where(is_value, value_second, before_second.to(dtype)), mask=mask)

    if NORM:
        program = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
        target = sums + program * 2 * SIZE + places
        tl.store(target, tl.sum(tl.where(is_query, sum_first, 0.0), 0), mask=in_half)
        tl.store(target + half, tl.sum(tl.where(is_query, sum_second, 0.0), 0), mask=in_half)
        tl.store(target + SIZE, tl.sum(tl.where(is_key, sum_first, 0.0), 0), mask=in_half)
        tl.store(target + SIZE + half, tl.sum(tl.where(is_key, sum_second, 0.0), 0), mask=in_half)


def launch(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    *,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    addresses: Tensor | None = None,
    slots: Tensor | None = None,
    positions: Tensor | None = None,
) -> None:
    """Launch the kernel, whose arguments these are: into a pool where there are `addresses`, else into tensors."""
    size, pool = cos.shape[-1], addresses is not None
    kv_heads = (qkv.shape[1] // size - heads) // 2
    norm = q_norm is not None and k_norm is not None
    values = pool or value is not None
    written = heads + kv_heads * (2 if values else 1)
    block, group = _tile(written, size)
    if len(qkv):
        others = (q_norm, k_norm, query, key, value, addresses, slots, positions)
        pointers = [qkv if other is None else other for other in others]  # any will do for what is not used
        sizes = {"HEADS": heads, "KV_HEADS": kv_heads, "SIZE": size, "GROUP": group, "HALF_BLOCK": block}
        # a fused multiply-add would leave out the rounding in between
        options = {"NORM": norm, "POOL": pool, "VALUES": values, "num_warps": 4, "enable_fp_fusion": False}
        _forward_kernel[(len(qkv), triton.cdiv(written, group))](qkv, cos, sin, *pointers, eps, **sizes, **options)


def _tile(heads: int, size: int) -> tuple[int, int]:
    """Numbers of half a head, and heads, that a program takes: powers of two."""
    block = triton.next_power_of_2(size // 2)
    return block, min(triton.next_power_of_2(heads), max(1, TILE // block))


class Rotary(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        heads: int,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        qkv, cos, sin = qkv.contiguous(), cos.contiguous(), sin.contiguous()
        norm = q_norm is not None and k_norm is not None
        ctx.eps = eps
        ctx.save_for_backward(*(qkv, q_norm, k_norm) if norm else (None, None, None), cos, sin)
        tokens, size = len(qkv), cos.shape[-1]
        every = qkv.shape[1] // size
        kv_heads = (every - heads) // 2
        query, key = qkv.new_empty((tokens, heads, size)), qkv.new_empty((tokens, kv_heads, size))
        # Nothing else keeps `qkv` for the backward pass where there are no norms: a view of its values would.
        copy = ctx.needs_input_grad[0] and not norm
        value = torch.empty_like(key) if copy else qkv.view(tokens, every, size)[:, heads + kv_heads :]
        launch(qkv, cos, sin, heads, q_norm, k_norm, eps, query=query, key=key, value=value if copy else None)
        return query, key, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        qkv, q_norm, k_norm, cos, sin = ctx.saved_tensors
        incoming = [x if x.stride(-1) == 1 else x.contiguous() for x in gradients]  # the other strides may be any
        (tokens, heads, size), kv_heads, norm = incoming[0].shape, incoming[1].shape[1], qkv is not None
        every = heads + 2 * kv_heads
        out = incoming[0].new_empty((tokens, every * size))
        block, group = _tile(every, size)
        groups = triton.cdiv(every, group)
        programs = min(tokens, max(1, PROGRAMS // groups)) if norm else tokens
        sums = out.new_empty((programs, groups, 2, size) if norm else 0, dtype=torch.float32)
        if tokens:
            own, query_weight, key_weight = (qkv, q_norm, k_norm) if norm else (out, out, out)
            strides = [stride for gradient in incoming for stride in gradient.stride()[:2]]
            sizes = {"HEADS": heads, "KV_HEADS": kv_heads, "SIZE": size, "GROUP": group, "HALF_BLOCK": block}
            tensors = *incoming, own, cos, sin, query_weight, key_weight, out, sums
            _backward_kernel[(programs, groups)](*tensors, tokens, ctx.eps, *strides, **sizes, NORM=norm, num_warps=4)
        if not norm:
            return out, *(None,) * 6
        d_q_norm, d_k_norm = sums.sum((0, 1))
        return out, None, None, None, d_q_norm.to(q_norm.dtype), d_k_norm.to(k_norm.dtype), None
