"""A hand-fused pass of rollout through Llama-shaped decoders, on the parameters of the HF module itself.

Consumes an HF module whose backbone is one of those in llama.py; its call takes a packed line of tokens, writes their
keys and values into the KV pool and hands on logits. Per layer: four matrix products, attention, and three small
kernels instead of a dozen. The merged weights are the memory of the module's own Parameters; the rollout engine's
canary sees it where somebody rebinds them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.models import llama
from burnish.ops.paged_attention import LayerKV, Paged, paged_attention
from burnish.ops.rms_norm import rms_norm
from burnish.ops.rotary import rotary_store, signed
from burnish.ops.swiglu import swiglu

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CLASSES = tuple(name.replace("Model", "ForCausalLM") for name in llama.BACKBONES)


class _Layer(NamedTuple):
    """What one layer reads, in the order of its use."""

    input_norm: Tensor  # (C,)
    input_eps: float
    qkv: Tensor  # ((H+2*Hkv)*D, C)
    qkv_bias: Tensor | None
    heads: int
    q_norm: Tensor | None  # (D,)
    k_norm: Tensor | None
    head_eps: float
    scale: float
    window: int | None
    o: Tensor  # (C, H*D)
    o_bias: Tensor | None
    mlp_norm: Tensor  # (C,)
    mlp_eps: float
    gate_up: Tensor  # (2*I, C)
    gate_up_bias: Tensor | None
    down: Tensor  # (C, I)
    down_bias: Tensor | None
    qkv_lora: list[llama.LowRank]
    o_lora: list[llama.LowRank]
    gate_up_lora: list[llama.LowRank]
    down_lora: list[llama.LowRank]


class FusedDecoder:
    """`FusedDecoder(module, context)(ids, positions, kv, where, keep)`: logits (n, V). See `problem` for what it takes.

    No gradients: every tensor it reads is detached.
    """

    @staticmethod
    def problem(module: "PreTrainedModel") -> str | None:
        """Why this module cannot take the fused path, or None where it can."""
        name = type(module).__name__
        if name not in CLASSES or not type(module).__module__.startswith("transformers.models."):
            return f"{name} is not one of {', '.join(CLASSES)} of transformers"
        if own := llama.changed_forward(module):
            return own
        if type(module.lm_head) is not nn.Linear:
            return f"lm_head is a {type(module.lm_head).__name__}, not a plain Linear"
        if (head := module.lm_head.weight).dtype != (table := module.model.embed_tokens.weight).dtype:
            return f"its parameters are of several kinds: lm_head {head.dtype}, embeddings {table.dtype}"
        return llama.problem(module.model)

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(self, module: "PreTrainedModel", context: int) -> None:
        if problem := self.problem(module):
            raise ValueError(f"the fused decoder cannot run this model: {problem}")
        decoder = module.model
        self._layers = [_layer(block) for block in llama.blocks(decoder)]
        self._embedding = decoder.embed_tokens.weight.detach()  # (V, C)
        self._head = module.lm_head.weight.detach()  # (V, C)
        self._norm, self._eps = decoder.norm.weight.detach(), decoder.norm.variance_epsilon
        places = torch.arange(context, device=self._embedding.device)[None]
        cos, sin = decoder.rotary_emb(self._embedding, places)
        self._cos, self._sin = cos[0].contiguous(), signed(sin[0])  # (context, D), in the model's dtype

    def __call__(
        self, ids: Tensor, positions: Tensor, kv: Sequence[LayerKV], where: Paged, keep: Tensor | None = None
    ) -> Tensor:
        """Logits (n, V) of the tokens `keep` (n,) of the line `ids`, `positions` (T,); None: of all."""
        cos, sin, slots, linear = self._cos, self._sin, where.slots, F.linear
        places: Tensor | None = positions  # rows of the tables, which the kernel looks up itself
        if not ids.is_cuda:
            cos, sin, places = cos[positions, None], sin[positions, None], None  # (T, 1, D), once for all layers
        residual = F.embedding(ids, self._embedding)  # (T, C)
        states: Tensor | None = None  # what the layer before adds to the residual stream
        for layer, cache in zip(self._layers, kv, strict=True):
            (
                input_norm, input_eps, qkv, qkv_bias, heads, q_norm, k_norm, head_eps, scale, window, o, o_bias,
                mlp_norm, mlp_eps, gate_up, gate_up_bias, down, down_bias,
                qkv_lora, o_lora, gate_up_lora, down_lora,
            ) = layer  # fmt: skip
            if states is None:
                normed = rms_norm(residual, input_norm, input_eps)
            else:
                normed, residual = rms_norm(states, input_norm, input_eps, residual)
            projected = _add(linear(normed, qkv, qkv_bias), normed, qkv_lora)  # (T, (H+2*Hkv)*D)
            query = rotary_store(
                projected, places, cos, sin, cache, slots, heads=heads, q_norm=q_norm, k_norm=k_norm, eps=head_eps
            )  # (T, H, D)
            mixed = paged_attention(query, cache, where, scale=scale, window=window)  # (T, H, D)
            mixed = mixed.flatten(1)
            states = _add(linear(mixed, o, o_bias), mixed, o_lora)  # (T, C)
            normed, residual = rms_norm(states, mlp_norm, mlp_eps, residual)
            inner = swiglu(_add(linear(normed, gate_up, gate_up_bias), normed, gate_up_lora))  # (T, I)
            states = _add(linear(inner, down, down_bias), inner, down_lora)  # (T, C)
        assert states is not None
        if keep is not None:
            states, residual = states[keep], residual[keep]  # (n, C)
        normed, _ = rms_norm(states, self._norm, self._eps, residual)
        return linear(normed, self._head)  # (n, V)


def _add(out: Tensor, x: Tensor, parts: list[llama.LowRank]) -> Tensor:
    """What adapters add to a projection of x, where it lies."""
    for columns, a, b, scale in parts:
        out[:, columns] += F.linear(F.linear(x, a), b) * scale  # rounded as in training
    return out


def _layer(block: llama.Block) -> _Layer:
    qkv, qkv_bias = block.qkv.merge()
    gate_up, gate_up_bias = block.gate_up.merge()
    o, o_bias = block.o.merge()
    down, down_bias = block.down.merge()
    return _Layer(
        input_norm=block.input_norm.detach(),
        input_eps=block.input_eps,
        qkv=qkv,
        qkv_bias=qkv_bias,
        heads=block.heads,
        q_norm=_detached(block.q_norm),
        k_norm=_detached(block.k_norm),
        head_eps=block.head_eps,
        scale=block.scale,
        window=block.window,
        o=o,
        o_bias=o_bias,
        mlp_norm=block.mlp_norm.detach(),
        mlp_eps=block.mlp_eps,
        gate_up=gate_up,
        gate_up_bias=gate_up_bias,
        down=down,
        down_bias=down_bias,
        qkv_lora=_low_rank(block.qkv),
        o_lora=_low_rank(block.o),
        gate_up_lora=_low_rank(block.gate_up),
        down_lora=_low_rank(block.down),
    )


def _low_rank(projection: llama.Projection) -> list[llama.LowRank]:
    return [part._replace(a=part.a.detach(), b=part.b.detach()) for part in projection.low_rank()]


def _detached(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.detach()
