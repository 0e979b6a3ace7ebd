"""From a packed line of tokens to logits, with keys and values in a paged pool: two ways through a model for rollout.

`FusedDecoder` does the arithmetic of Llama-shaped models (llama.py) with fewer, larger operations on the parameters of
the HF module itself; the rollout engine's canary detects it if somebody rebinds them. `ModuleDecoder` calls the module.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.models import llama
from burnish.models.attention import PagedPass, line_inputs
from burnish.ops.paged_attention import LayerKV, Paged, paged_attention
from burnish.ops.rms_norm import rms_norm
from burnish.ops.rotary import rotary_store, signed
from burnish.ops.swiglu import swiglu

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CLASSES = tuple(name.replace("Model", "ForCausalLM") for name in llama.BACKBONES)


# Stores the keys and values of a line, ids and positions (T,), and returns its logits (n, V): those of the tokens (n,)
# that are to be kept, None: all.
Decoder = Callable[[Tensor, Tensor, Sequence[LayerKV], Paged, Tensor | None], Tensor]


class ModuleDecoder:
    def __init__(self, module: "PreTrainedModel"):
        self.module = module
        self._keeps = "logits_to_keep" in inspect.signature(module.forward).parameters

    def __call__(
        self, ids: Tensor, positions: Tensor, kv: Sequence[LayerKV], where: Paged, keep: Tensor | None = None
    ) -> Tensor:
        inputs = line_inputs(ids, positions) | {"paged": PagedPass(kv, where)}
        if keep is None:
            return self.module(**inputs).logits[0]
        if self._keeps:
            return self.module(**inputs, logits_to_keep=keep).logits[0]
        return self.module(**inputs).logits[0, keep]


class _Weights(NamedTuple):
    """One projection, detached: the merged weight (out, in) and bias, and what adapters add."""

    weight: Tensor
    bias: Tensor | None
    low_rank: list[llama.LowRank]

    @classmethod
    def of(cls, *layers: nn.Module) -> "_Weights":
        projection = llama.Projection(*layers)
        parts = [part._replace(a=part.a.detach(), b=part.b.detach()) for part in projection.low_rank()]
        return cls(*projection.merge(), parts)


class FusedDecoder:
    """Logits (n, V) of a module without a `problem`. No gradients: every tensor it reads is detached."""

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
        decoder = module.model
        self._layers = llama.layers(decoder, _Weights.of, Tensor.detach)
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
        cos, sin, slots = self._cos, self._sin, where.slots
        places: Tensor | None = positions  # rows of the tables, which the kernel looks up itself
        if not ids.is_cuda:
            cos, sin, places = cos[positions, None], sin[positions, None], None  # (T, 1, D), once for all layers
        states: Tensor = F.embedding(ids, self._embedding)  # (T, C), and then what a layer adds to the residual stream
        residual: Tensor | None = None
        for layer, cache in zip(self._layers, kv, strict=True):
            normed, residual = rms_norm(states, layer.input_norm, layer.input_eps, residual)
            query = rotary_store(
                _project(normed, layer.qkv), places, cos, sin, cache, slots,
                heads=layer.heads, q_norm=layer.q_norm, k_norm=layer.k_norm, eps=layer.head_eps,
            )  # (T, H, D)  # fmt: skip
            mixed = paged_attention(query, cache, where, scale=layer.scale, window=layer.window)  # (T, H, D)
            states = _project(mixed.flatten(1), layer.o)  # (T, C)
            normed, residual = rms_norm(states, layer.mlp_norm, layer.mlp_eps, residual)
            states = _project(swiglu(_project(normed, layer.gate_up)), layer.down)  # (T, C)
        assert residual is not None
        if keep is not None:
            states, residual = states[keep], residual[keep]  # (n, C)
        normed, _ = rms_norm(states, self._norm, self._eps, residual)
        return F.linear(normed, self._head)  # (n, V)


def _project(x: Tensor, weights: _Weights) -> Tensor:
    """x (T, in) → (T, out), with what adapters add to some columns."""
    weight, bias, low_rank = weights
    out = F.linear(x, weight, bias)
    for columns, a, b, scale in low_rank:
        out[:, columns] += F.linear(F.linear(x, a), b) * scale  # rounded as in training
    return out


def decoder_for(module: "PreTrainedModel", context: int, fused: bool = True) -> Decoder:
    """The fused decoder where it can take the module and is wanted, else the module itself."""
    if fused and FusedDecoder.problem(module) is None:
        return FusedDecoder(module, context)
    return ModuleDecoder(module)
