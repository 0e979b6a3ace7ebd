"""From the output of the merged q/k/v projection (T, (H+2*Hkv)*D) to queries, keys and values ready for attention.

Queries and keys get the RMS norm of each head where the model has one (Qwen3) and their rotation by position, rounded
to the model's dtype where HF's modules round. The rotation pairs element i of a head with element i + D/2:
x * cos + rotate_half(x) * sin, with the sign of rotate_half in the table, see `signed`.
"""

import torch
from torch import Tensor

from burnish.ops.paged_attention import LayerKV, store
from burnish.ops.rms_norm import rms_norm


def signed(sin: Tensor) -> Tensor:
    """The sine table (P, D) of an HF rotary embedding with its first half negated, as the functions here take it."""
    first, second = sin.chunk(2, -1)
    return torch.cat((-first, second), dim=-1)


def rotary_store(
    qkv: Tensor,
    positions: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    kv: LayerKV,
    slots: Tensor,
    *,
    heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Store rotated keys and plain values of `qkv` (T, (H+2*Hkv)*D), contiguous, at `slots` (T,); return queries.

    `cos` and `sin` (P, D) are tables in the model's dtype, `sin` as `signed` gives it; `positions` (T,) are rows of
    them. On the CPU None says that they hold the rows of these very tokens, (T, 1, D): looked up once for all layers.
    `q_norm` and `k_norm` (D,) are weights of the norm over each head, with `eps`.
    """
    if qkv.is_cuda:
        from burnish.ops.triton.rotary import launch

        assert positions is not None and kv.addresses is not None
        query = qkv.new_empty((len(qkv), heads, cos.shape[-1]))
        pool = dict(addresses=kv.addresses, slots=slots, positions=positions)
        launch(qkv, cos, sin, heads, q_norm, k_norm, eps, query=query, **pool)
        return query
    if positions is not None:
        cos, sin = cos[positions, None], sin[positions, None]  # (T, 1, D)
    query, key, value = _turned(qkv, cos, sin, heads, q_norm, k_norm, eps)
    store(kv, slots, key, value)
    return query


def rotary(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (T, H, D), rotated keys and plain values (T, Hkv, D) of `qkv` (T, (H+2*Hkv)*D).

    `cos` and `sin` (T, D) are rows of these very tokens in the model's dtype, `sin` as `signed` gives it. `q_norm` and
    `k_norm` (D,) are weights of the norm over each head, with `eps`. Differentiable in `qkv`, `q_norm` and `k_norm`.
    The results may be views, of `qkv` or of each other's memory: not contiguous, and not to be written to.
    """
    if qkv.is_cuda:
        from burnish.ops.triton.rotary import Rotary

        return Rotary.apply(qkv, cos, sin, heads, q_norm, k_norm, eps)
    return _turned(qkv, cos[:, None], sin[:, None], heads, q_norm, k_norm, eps)


def _turned(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, q_norm: Tensor | None, k_norm: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As `rotary`, in torch: `cos` and `sin` are (T, 1, D)."""
    size = cos.shape[-1]
    every = qkv.shape[1] // size
    kv_heads = (every - heads) // 2
    # (T, H+Hkv, D): what is rotated; (T, Hkv, D)
    turned, value = qkv.view(len(qkv), every, size).split((heads + kv_heads, kv_heads), 1)
    if q_norm is not None and k_norm is not None:
        query, key = turned.split((heads, kv_heads), 1)
        turned = torch.cat((rms_norm(query, q_norm, eps)[0], rms_norm(key, k_norm, eps)[0]), 1)
    exchanged = turned.roll(size // 2, -1)
    turned = (turned * cos).add_(exchanged.mul_(sin))
    query, key = turned.split((heads, kv_heads), 1)
    return query, key, value
