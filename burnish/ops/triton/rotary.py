"""Head norms, rotation and the write to the KV pool on the GPU, in one launch.

A program takes some heads of one token: query, key and value heads alike, told apart by masks. The pool's addresses
are read on the device, so that a captured graph survives a pool that was freed and allocated elsewhere.
"""

import triton
import triton.language as tl
from torch import Tensor

from burnish.ops.paged_attention import LayerKV

TILE = 1024  # figures of one half of the heads that a program takes: 16 heads of 128


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
def _kernel(
    qkv,  # (T, (H+2*Hkv)*D)
    positions,  # (T,) int64
    cos,  # (P, D)
    sin,  # (P, D), first half negated
    addresses,  # (2,) int64: where keys and values of the pool lie
    slots,  # (T,) int64
    q_norm,  # (D,)
    k_norm,  # (D,)
    out,  # (T, H, D)
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    NORM: tl.constexpr,
):
    dtype = out.dtype.element_ty
    half: tl.constexpr = SIZE // 2
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)[:, None]  # (GROUP, 1)
    places = tl.arange(0, HALF_BLOCK)  # (HALF_BLOCK,)
    in_half = places < half
    mask = (head < HEADS + 2 * KV_HEADS) & in_half[None, :]

    source = qkv + token * (HEADS + 2 * KV_HEADS) * SIZE + head * SIZE + places[None, :]
    raw_first = tl.load(source, mask=mask, other=0.0)
    raw_second = tl.load(source + half, mask=mask, other=0.0)
    first, second = raw_first.to(tl.float32), raw_second.to(tl.float32)
    if NORM:
        first, second = _head_norm(first, second, head < HEADS, q_norm, k_norm, places, in_half, eps, dtype, SIZE)

    row = tl.load(positions + token) * SIZE
    cos_first = tl.load(cos + row + places, mask=in_half, other=0.0).to(tl.float32)[None, :]
    cos_second = tl.load(cos + row + half + places, mask=in_half, other=0.0).to(tl.float32)[None, :]
    sin_first = tl.load(sin + row + places, mask=in_half, other=0.0).to(tl.float32)[None, :]
    sin_second = tl.load(sin + row + half + places, mask=in_half, other=0.0).to(tl.float32)[None, :]
    # HF evaluates in the model's dtype: both products are rounded before they are added.
    turned_first = (first * cos_first).to(dtype).to(tl.float32) + (second * sin_first).to(dtype).to(tl.float32)
    turned_second = (second * cos_second).to(dtype).to(tl.float32) + (first * sin_second).to(dtype).to(tl.float32)
    turned_first, turned_second = turned_first.to(dtype), turned_second.to(dtype)

    target = out + token * HEADS * SIZE + head * SIZE + places[None, :]
    is_query = mask & (head < HEADS)
    tl.store(target, turned_first, mask=is_query)
    tl.store(target + half, turned_second, mask=is_query)

    # Allocations are aligned; said here because an address that comes from memory tells the compiler nothing.
    keys = tl.multiple_of(tl.load(addresses).to(tl.pointer_type(dtype)), 16)
    values = tl.multiple_of(tl.load(addresses + 1).to(tl.pointer_type(dtype)), 16)
    slot = tl.load(slots + token) * KV_HEADS * SIZE
    target = keys + slot + (head - HEADS) * SIZE + places[None, :]
    is_key = mask & (head >= HEADS) & (head < HEADS + KV_HEADS)
    tl.store(target, turned_first, mask=is_key)
    tl.store(target + half, turned_second, mask=is_key)
    target = values + slot + (head - HEADS - KV_HEADS) * SIZE + places[None, :]
    is_value = mask & (head >= HEADS + KV_HEADS)
    tl.store(target, raw_first, mask=is_value)
    tl.store(target + half, raw_second, mask=is_value)


def launch(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    kv: LayerKV,
    slots: Tensor,
    heads: int,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> Tensor:
    """Queries (T, H, D); keys and values are in the pool. Arguments as for `burnish.ops.rotary.rotary_store`."""
    tokens, size = len(qkv), cos.shape[-1]
    kv_heads = (qkv.shape[1] // size - heads) // 2
    out = qkv.new_empty((tokens, heads, size))
    if tokens:
        norm = q_norm is not None and k_norm is not None
        block = triton.next_power_of_2(size // 2)
        every = heads + 2 * kv_heads
        group = min(triton.next_power_of_2(every), max(1, TILE // block))
        _kernel[(tokens, triton.cdiv(every, group))](
            qkv,
            positions,
            cos,
            sin,
            kv.addresses,
            slots,
            q_norm if norm else qkv,
            k_norm if norm else qkv,
            out,
            eps,
            HEADS=heads,
            KV_HEADS=kv_heads,
            SIZE=size,
            GROUP=group,
            HALF_BLOCK=block,
            NORM=norm,
            num_warps=4,
            enable_fp_fusion=False,  # a fused multiply-add would leave out the rounding in between
        )
    return out
