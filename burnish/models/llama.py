"""Llama-shaped decoders: which models are, and what their layers are made of, for the fused passes of rollout
(decoders.py) and training (backbones.py).

Projections that read the same states become one product: `Projection.merge` moves their weights into one buffer and
points the module's own Parameters at their rows of it. Whoever rebinds a parameter's memory afterwards (`module.to(…)`)
cuts that tie. Weights that are not in one buffer, such as those that FSDP2 has gathered, are copied for each product.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from burnish.errors import NotAvailable
from burnish.models.lora import lora_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BACKBONES = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # whose frequencies are the same at every length
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HARMLESS_HOOK = "make_inputs_require_grads"  # transformers', for gradient checkpointing: changes no number
QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


class LowRank(NamedTuple):
    """What an adapter adds to some columns of a projection's output: scale·B(A x)."""

    columns: slice
    a: Tensor  # (r, in)
    b: Tensor  # (out, r)
    scale: float


class Projection:
    """Linear layers that read the same states, as one. They may carry LoRA adapters (`models/lora.py`)."""

    def __init__(self, *layers: nn.Module):
        self.layers = layers
        found = [lora_of(layer) for layer in layers]
        self.bases: list[Any] = [lora[0] if lora else layer for layer, lora in zip(layers, found, strict=True)]
        self.has_adapter = any(lora is not None for lora in found)
        self.weights: list[Tensor] = [base.weight for base in self.bases]
        self.biases: list[Tensor] = [base.bias for base in self.bases if base.bias is not None]

    def merge(self) -> tuple[Tensor, Tensor | None]:
        """One weight and bias for all, which from now on are the memory of the layers' own parameters."""
        return _one_buffer(self.weights), _one_buffer(self.biases) if self.biases else None

    def low_rank(self) -> Iterator[LowRank]:
        """What adapters add at this moment; nothing while they are off."""
        start = 0
        for layer, base in zip(self.layers, self.bases, strict=True):
            end = start + base.out_features
            for a, b, scale in (lora_of(layer) or (base, []))[1]:
                yield LowRank(slice(start, end), a, b, scale)
            start = end


P = TypeVar("P")


@dataclass(frozen=True)
class DecoderLayer(Generic[P]):
    """What one layer is made of, in the order of its use; `P` is a projection, as the fused pass wants it."""

    input_norm: Tensor  # (C,)
    input_eps: float
    qkv: P  # (C,) → ((H+2*Hkv)*D,)
    heads: int
    q_norm: Tensor | None  # (D,)
    k_norm: Tensor | None
    head_eps: float
    scale: float
    window: int | None
    o: P  # (H*D,) → (C,)
    mlp_norm: Tensor  # (C,)
    mlp_eps: float
    gate_up: P  # (C,) → (2*I,)
    down: P  # (I,) → (C,)


def problem(backbone: "PreTrainedModel") -> str | None:
    """Why this backbone cannot be run by hand, or None where it can."""
    name = type(backbone).__name__
    if name not in BACKBONES or not type(backbone).__module__.startswith("transformers.models."):
        return f"{name} is not one of {', '.join(BACKBONES)} of transformers"
    return _config_problem(backbone) or _modules_problem(backbone) or _parameters_problem(backbone)


def layers(
    backbone: "PreTrainedModel", project: Callable[..., P], weight: Callable[[Tensor], Tensor] = lambda own: own
) -> list[DecoderLayer[P]]:
    """The layers of a backbone without a `problem`: `project` makes a projection of linear layers that read the same
    states, `weight` what is kept of a norm's own weight."""
    return [layer_of(backbone, number, project, weight) for number in range(len(backbone.layers))]


def layer_of(
    backbone: "PreTrainedModel",
    number: int,
    project: Callable[..., P],
    weight: Callable[[Tensor], Tensor] = lambda own: own,
) -> DecoderLayer[P]:
    """The layer of this number, with the parameters that it has now."""
    layer = backbone.layers[number]
    kind, attention, mlp = type(backbone).__name__, layer.self_attn, layer.mlp
    q_norm, k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    window = None  # the one that the HF attention of this class hands to its attention function
    if kind != "LlamaModel":
        window = backbone.config.sliding_window if kind == "MistralModel" else attention.sliding_window
    return DecoderLayer(
        input_norm=weight(layer.input_layernorm.weight),
        input_eps=layer.input_layernorm.variance_epsilon,
        qkv=project(*(getattr(attention, name) for name in QKV)),
        heads=attention.q_proj.out_features // attention.head_dim,
        q_norm=None if q_norm is None else weight(q_norm.weight),
        k_norm=None if k_norm is None else weight(k_norm.weight),
        head_eps=0.0 if q_norm is None else q_norm.variance_epsilon,
        scale=attention.scaling,
        window=window,
        o=project(attention.o_proj),
        mlp_norm=weight(layer.post_attention_layernorm.weight),
        mlp_eps=layer.post_attention_layernorm.variance_epsilon,
        gate_up=project(*(getattr(mlp, name) for name in GATE_UP)),
        down=project(mlp.down_proj),
    )


def stacked(parameters: Sequence[Tensor]) -> Tensor:
    """Parameters of equal width, one below the other: where they are if they are so already, or a copy."""
    if not _one_below_the_other(parameters):
        return torch.cat([parameter.detach() for parameter in parameters])
    first = parameters[0].detach()
    return first.as_strided((sum(map(len, parameters)), *first.shape[1:]), first.stride())


def _one_buffer(parameters: Sequence[Tensor]) -> Tensor:
    buffer = stacked(parameters)
    for parameter, part in zip(parameters, buffer.split(list(map(len, parameters))), strict=True):
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


def _config_problem(backbone: "PreTrainedModel") -> str | None:
    config, rope = backbone.config, backbone.rotary_emb
    if config.hidden_act != "silu":
        return f"hidden_act={config.hidden_act}: only silu is fused"
    if getattr(config, "pretraining_tp", 1) not in (None, 1):
        return f"pretraining_tp={config.pretraining_tp}: only 1 is fused"
    if getattr(config, "quantization_config", None) is not None or getattr(backbone, "is_quantized", False):
        return "its weights are quantised"
    if rope.rope_type not in ROPE_TYPES:
        return f"rope_type={rope.rope_type}: only {', '.join(ROPE_TYPES)} are fused"
    size = backbone.layers[0].self_attn.head_dim if len(backbone.layers) else 0
    if 2 * len(rope.inv_freq) != size:
        return f"its rotary embedding turns {2 * len(rope.inv_freq)} of {size} elements of a head"
    if len(backbone.layers) != config.num_hidden_layers:
        return f"num_hidden_layers={config.num_hidden_layers}, but the model has {len(backbone.layers)} layers"
    return None


def _modules_problem(backbone: "PreTrainedModel") -> str | None:
    if own := changed_forward(backbone):
        return own
    for name, child in backbone.named_modules():
        if name.endswith("_proj"):
            try:
                lora_of(child)
            except NotAvailable as error:
                return f"{name} is a {type(child).__module__}.{type(child).__name__}, not a plain Linear ({error})"
    for i, layer in enumerate(backbone.layers):
        for parent, names in ((layer.self_attn, QKV), (layer.mlp, GATE_UP)):
            biases = [getattr(parent, name).bias is not None for name in names]
            if any(biases) != all(biases):
                return f"layer {i}: only some of {', '.join(names)} have a bias"
    return None


def changed_forward(module: nn.Module) -> str | None:
    """What was hung into a forward pass of this module or a part of it, which a fused pass would leave out."""
    for name, child in module.named_modules():
        hooks = [*child._forward_hooks.values(), *child._forward_pre_hooks.values()]
        if any(getattr(hook, "__name__", "") != HARMLESS_HOOK for hook in hooks):
            return f"{name or 'the model'} has forward hooks, which the fused path would not call"
        if "forward" in vars(child):
            return f"the forward of {name or 'the model'} was replaced"
    return None


def _parameters_problem(backbone: "PreTrainedModel") -> str | None:
    parameters = dict(backbone.named_parameters(remove_duplicate=False))
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
