"""A hand-fused pass through Llama-shaped decoders, on the parameters of the HF module itself.

Consumes an HF module of one of the CLASSES; its call takes a packed line of tokens, writes their keys and values into
the KV pool and hands on logits. Per layer: four matrix products, attention, and three small kernels instead of a dozen.

q, k and v projections (and gate and up) become one product each. Their weights are moved, layer by layer, into one
buffer, and the module's own Parameters are pointed at their rows of it: there is no second copy, and what an optimiser,
a checkpoint or the training forward reads and writes is what this pass reads. Whoever rebinds a parameter's memory
afterwards (`module.to(…)`) cuts that tie; the rollout engine's canary sees it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.ops.paged_attention import LayerKV, Paged, paged_attention
from burnish.ops.rms_norm import rms_norm
from burnish.ops.rotary import rotary_store, signed
from burnish.ops.swiglu import swiglu

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CLASSES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # whose frequencies are the same at every length
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HARMLESS_HOOK = "make_inputs_require_grads"  # transformers', for gradient checkpointing: nothing without gradients
QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


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
        return _config_problem(module) or _modules_problem(module) or _parameters_problem(module)

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(self, module: "PreTrainedModel", context: int) -> None:
        if problem := self.problem(module):
            raise ValueError(f"the fused decoder cannot run this model: {problem}")
        decoder = module.model
        self._layers = [_layer(layer, module) for layer in decoder.layers]
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
            ) = layer  # fmt: skip
            if states is None:
                normed = rms_norm(residual, input_norm, input_eps)
            else:
                normed, residual = rms_norm(states, input_norm, input_eps, residual)
            projected = linear(normed, qkv, qkv_bias)  # (T, (H+2*Hkv)*D)
            query = rotary_store(
                projected, places, cos, sin, cache, slots, heads=heads, q_norm=q_norm, k_norm=k_norm, eps=head_eps
            )  # (T, H, D)
            mixed = paged_attention(query, cache, where, scale=scale, window=window)  # (T, H, D)
            states = linear(mixed.flatten(1), o, o_bias)  # (T, C)
            normed, residual = rms_norm(states, mlp_norm, mlp_eps, residual)
            states = linear(swiglu(linear(normed, gate_up, gate_up_bias)), down, down_bias)  # (T, C)
        assert states is not None
        if keep is not None:
            states, residual = states[keep], residual[keep]  # (n, C)
        normed, _ = rms_norm(states, self._norm, self._eps, residual)
        return linear(normed, self._head)  # (n, V)


def _layer(layer: Any, module: "PreTrainedModel") -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    q_norm, k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    qkv, qkv_bias = _merge([getattr(attention, name) for name in QKV])
    gate_up, gate_up_bias = _merge([getattr(mlp, name) for name in GATE_UP])
    return _Layer(
        input_norm=layer.input_layernorm.weight.detach(),
        input_eps=layer.input_layernorm.variance_epsilon,
        qkv=qkv,
        qkv_bias=qkv_bias,
        heads=attention.q_proj.out_features // attention.head_dim,
        q_norm=None if q_norm is None else q_norm.weight.detach(),
        k_norm=None if k_norm is None else k_norm.weight.detach(),
        head_eps=0.0 if q_norm is None else q_norm.variance_epsilon,
        scale=attention.scaling,
        window=_window(attention, module),
        o=attention.o_proj.weight.detach(),
        o_bias=_detached(attention.o_proj.bias),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        mlp_eps=layer.post_attention_layernorm.variance_epsilon,
        gate_up=gate_up,
        gate_up_bias=gate_up_bias,
        down=mlp.down_proj.weight.detach(),
        down_bias=_detached(mlp.down_proj.bias),
    )


def _window(attention: Any, module: "PreTrainedModel") -> int | None:
    """The sliding window that the HF attention of this class hands to its attention function."""
    if type(module).__name__ == "LlamaForCausalLM":
        return None
    if type(module).__name__ == "MistralForCausalLM":
        return module.config.sliding_window
    return attention.sliding_window  # of the kind of this layer


def _detached(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.detach()


def _merge(projections: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """One weight and bias for all, which from now on are the memory of the projections' own parameters."""
    weight = _in_one_buffer([projection.weight for projection in projections])
    biases = [projection.bias for projection in projections if projection.bias is not None]
    return weight, _in_one_buffer(biases) if biases else None


def _in_one_buffer(parameters: Sequence[Tensor]) -> Tensor:
    """Parameters of equal width, one below the other: where they lie already, or moved to a new buffer."""
    rows = [len(parameter) for parameter in parameters]
    if _one_below_the_other(parameters):
        first = parameters[0].detach()
        return first.as_strided((sum(rows), *first.shape[1:]), first.stride())
    buffer = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, part in zip(parameters, buffer.split(rows), strict=True):
        parameter.data = part
    return buffer


def _one_below_the_other(parameters: Sequence[Tensor]) -> bool:
    end = None
    for parameter in parameters:
        here = (parameter.untyped_storage().data_ptr(), parameter.storage_offset())
        if not parameter.is_contiguous() or (end is not None and here != end):
            return False
        end = (here[0], here[1] + parameter.numel())
    return True


def _config_problem(module: "PreTrainedModel") -> str | None:
    config, rope = module.config, module.model.rotary_emb
    if config.hidden_act != "silu":
        return f"hidden_act={config.hidden_act}: only silu is fused"
    if getattr(config, "pretraining_tp", 1) not in (None, 1):
        return f"pretraining_tp={config.pretraining_tp}: only 1 is fused"
    if getattr(config, "quantization_config", None) is not None or getattr(module, "is_quantized", False):
        return "its weights are quantised"
    if rope.rope_type not in ROPE_TYPES:
        return f"rope_type={rope.rope_type}: only {', '.join(ROPE_TYPES)} are fused"
    size = module.model.layers[0].self_attn.head_dim if len(module.model.layers) else 0
    if 2 * len(rope.inv_freq) != size:
        return f"its rotary embedding turns {2 * len(rope.inv_freq)} of {size} figures of a head"
    if len(module.model.layers) != config.num_hidden_layers:
        return f"num_hidden_layers={config.num_hidden_layers}, but the module has {len(module.model.layers)} layers"
    return None


def _modules_problem(module: "PreTrainedModel") -> str | None:
    for name, child in module.named_modules():
        if (name.endswith("_proj") or name == "lm_head") and type(child) is not nn.Linear:
            return f"{name} is a {type(child).__module__}.{type(child).__name__}, not a plain Linear"
        hooks = [*child._forward_hooks.values(), *child._forward_pre_hooks.values()]
        if any(getattr(hook, "__name__", "") != HARMLESS_HOOK for hook in hooks):
            return f"{name or 'the module'} has forward hooks, which the fused path would not call"
        if "forward" in vars(child):
            return f"the forward of {name or 'the module'} was replaced"
    for i, layer in enumerate(module.model.layers):
        for parent, names in ((layer.self_attn, QKV), (layer.mlp, GATE_UP)):
            biases = [getattr(parent, name).bias is not None for name in names]
            if any(biases) != all(biases):
                return f"layer {i}: only some of {', '.join(names)} have a bias"
    return None


def _parameters_problem(module: "PreTrainedModel") -> str | None:
    parameters = dict(module.named_parameters(remove_duplicate=False))
    kinds = sorted({f"{p.dtype} on {p.device}" for p in parameters.values()})
    if len(kinds) > 1:
        return f"its parameters are of several kinds: {', '.join(kinds)}"
    one = next(iter(parameters.values()))
    if one.dtype not in DTYPES or one.device.type == "meta":
        return f"its parameters are {kinds[0]}"
    uses = Counter(id(parameter) for parameter in parameters.values())
    for name, parameter in parameters.items():
        if type(parameter) is not nn.Parameter:
            return f"{name} is a {type(parameter).__name__}, not a plain Parameter"
        if uses[id(parameter)] > 1 and "_proj." in name:
            return f"{name} is shared with another projection"
    return None
