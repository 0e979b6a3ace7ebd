"""The one attention function that burnish registers with transformers, and the context that locates the tokens.

A module whose implementation is `burnish_sdpa` (or another in PLAIN) attends as that implementation does, until a
forward call brings, as a keyword argument, one of two contexts. Then its tokens are one packed line of sequences:

    packed   `Sequences`, for training; with `ulysses` the call has a slice of the line, other processes have the rest
    paged    `PagedPass`, for rollout: keys and values go into the layer's pool, and each token attends to what its own
             sequence has there
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from burnish.errors import NotAvailable
from burnish.models.ulysses import Ulysses, heads_problem
from burnish.ops.paged_attention import LayerKV, Paged, paged_attention, store
from burnish.ops.varlen_attention import Sequences, varlen_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PREFIX = "burnish_"
PLAIN = ("sdpa", "eager")
ORDINARY = (DynamicLayer, DynamicSlidingWindowLayer)  # keys and values per token, and nothing else
BY_LENGTH = ("dynamic", "longrope")  # rotary frequencies that depend on the longest sequence of a batch
EXTRAS = {  # what attention may depend on besides queries, keys and values
    "s_aux": "attention sinks", "position_bias": "a bias by position", "head_mask": "a mask of heads",
}  # fmt: skip
NO_MASK = (1, 1, 1, 1)
INSTEAD = "Choose rollout.name=hf (--engine hf), or a decoder with an ordinary key-value cache"


@dataclass(frozen=True)
class LayerShape:
    heads: int
    head_size: int


@dataclass(frozen=True)
class PagedPass:
    kv: Sequence[LayerKV]  # by layer
    where: Paged


@dataclass(frozen=True)
class TrialPass:
    """A forward pass that only records what each layer hands to the attention function."""

    windows: list[int | None]  # by layer, as the model's cache knows them
    processes: int = 1  # that share each line
    layers: list[tuple[int, LayerShape]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def layers_of(module: "PreTrainedModel") -> list[LayerShape]:
    """What each layer keeps per token; NotAvailable for a model that cannot be paged, which names its kind."""
    shapes = _try_line(module)
    if isinstance(shapes, str):
        instead = INSTEAD
        if _attention_problem(module):
            capped = getattr(module.config.get_text_config(), "attn_logit_softcapping", None) is not None
            instead = f"Choose attn_implementation={'eager' if capped else ' or '.join(PLAIN)}"
        raise NotAvailable(f"the native rollout engine for {type(module).__name__}: {shapes}", instead)
    return shapes


def packing_problem(module: "PreTrainedModel", processes: int = 1) -> str | None:
    """Why a module takes no packed lines in training, or none that several processes share; None: it takes them now."""
    shapes = _try_line(module, processes)
    return shapes if isinstance(shapes, str) else None


def _try_line(module: "PreTrainedModel", processes: int = 1) -> list[LayerShape] | str:
    """What each layer hands to the attention function, seen in a pass of two tokens; or why it cannot take lines."""
    if problem := _kind_problem(module) or _attention_problem(module):
        return problem
    config = module.config.get_text_config()
    if not config._attn_implementation.startswith(PREFIX):
        module.set_attn_implementation(PREFIX + config._attn_implementation)
    cache = DynamicCache(config=config)
    trial = TrialPass([getattr(layer, "sliding_window", None) for layer in cache.layers], processes)
    ids = torch.zeros(1, 2, dtype=torch.long, device=next(module.parameters()).device)
    with torch.no_grad():
        module(**line_inputs(ids[0], torch.arange(2, device=ids.device)), paged=trial)
    seen = [index for index, _ in trial.layers]
    if not seen:
        trial.problems.append("no layer calls the attention interface with the arguments of its forward pass")
    elif sorted(seen) != list(range(len(seen))):
        trial.problems.append("layers share keys and values, or call attention several times")
    if trial.problems:
        return trial.problems[0]
    return [shape for _, shape in sorted(trial.layers, key=lambda layer: layer[0])]


def _attention_problem(module: "PreTrainedModel") -> str | None:
    config = module.config.get_text_config()
    own = config._attn_implementation.removeprefix(PREFIX)
    if own not in PLAIN:
        return f"attn_implementation={own}"
    if own == "sdpa" and getattr(config, "attn_logit_softcapping", None) is not None:
        return "sdpa leaves out its capped scores"
    return None


def line_inputs(ids: Tensor, positions: Tensor) -> dict[str, Any]:
    """Arguments of a module's forward for a packed line (T,). A mask of four dimensions is taken as it is."""
    mask = torch.ones(NO_MASK, dtype=torch.bool, device=ids.device)
    return {"input_ids": ids[None], "position_ids": positions[None], "attention_mask": mask, "use_cache": False}


def _kind_problem(module: "PreTrainedModel") -> str | None:
    config = module.config.get_text_config()
    if module.config.is_encoder_decoder:
        return "it has an encoder"
    layers = DynamicCache(config=config).layers
    if other := sorted({type(layer).__name__ for layer in layers if type(layer) not in ORDINARY}):
        return f"its cache has {', '.join(other)}, not keys and values per token"
    if not getattr(module, "_supports_attention_backend", False):
        return "its attention is its own, not transformers' attention interface"
    by_length = [kind for kind in _rope_types(getattr(config, "rope_parameters", None)) if kind in BY_LENGTH]
    if by_length:
        return f"its rotary frequencies ({by_length[0]}) depend on the longest sequence of a batch"
    return None


def _rope_types(parameters: Any) -> Iterator[str]:
    """Also where each kind of layer has its own."""
    for name, value in parameters.items() if isinstance(parameters, dict) else ():
        if name == "rope_type":
            yield value
        else:
            yield from _rope_types(value)


def _attention(plain: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def forward(
        module: nn.Module,
        query: Tensor,  # (1, H, T, D)
        key: Tensor,  # (1, Hkv, T, D)
        value: Tensor,
        attention_mask: Tensor | None,
        packed: Sequences | None = None,
        paged: PagedPass | TrialPass | None = None,
        ulysses: Ulysses | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if packed is None and paged is None:
            # transformers registers no eager function: each model's file has its own
            own = sys.modules[type(module).__module__] if plain == "eager" else None
            function = own.eager_attention_forward if own else ALL_ATTENTION_FUNCTIONS[plain]
            return function(module, query, key, value, attention_mask, **kwargs)
        if isinstance(paged, TrialPass):
            return _note(paged, module, query, key, value, {"mask": attention_mask, **kwargs}), None
        queries, keys, values = (part[0].transpose(0, 1) for part in (query, key, value))  # (T, H or Hkv, D)
        scale = kwargs.get("scaling")
        scores: dict[str, Any] = {
            "scale": query.shape[-1] ** -0.5 if scale is None else scale,
            "window": kwargs.get("sliding_window"),
            "softcap": kwargs.get("softcap"),
        }
        if paged is None:
            assert packed is not None
            attention = varlen_attention if ulysses is None else ulysses.attention
            return attention(queries, keys, values, packed, **scores)[None], None
        kv = paged.kv[module.layer_idx]  # type: ignore[call-overload]
        store(kv, paged.where.slots, keys, values)
        return paged_attention(queries, kv, paged.where, **scores)[None], None  # (1, T, H, D)

    return forward


def _note(
    trial: TrialPass, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, arguments: dict[str, Any]
) -> Tensor:
    layer = getattr(module, "layer_idx", -1)
    trial.layers.append((layer, LayerShape(key.shape[1], key.shape[-1])))
    window = trial.windows[layer] if 0 <= layer < len(trial.windows) else None
    if window is not None and arguments.get("sliding_window") != window:
        trial.problems.append(f"its window of {window} tokens is in its mask alone, which a paged pass does not read")
    if arguments["mask"] is not None and arguments["mask"].shape != NO_MASK:
        trial.problems.append("it makes its own mask")
    if key.shape[-1] != value.shape[-1]:
        trial.problems.append(
            f"keys and values differ in size ({key.shape[-1]}, {value.shape[-1]}), as in multi-head latent attention"
        )
    if arguments.get("is_causal", True) is False or not getattr(module, "is_causal", True):
        trial.problems.append("its attention is not causal")
    if problem := heads_problem(query.shape[1], trial.processes):
        trial.problems.append(problem)
    trial.problems.extend(f"it has {kind}" for name, kind in EXTRAS.items() if arguments.get(name) is not None)
    repeated = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    return repeated.transpose(1, 2).contiguous()  # (1, T, H, D): any numbers of the right shape


for _name in PLAIN:
    AttentionInterface.register(PREFIX + _name, _attention(_name))
    AttentionMaskInterface.register(PREFIX + _name, ALL_MASK_ATTENTION_FUNCTIONS[_name])
