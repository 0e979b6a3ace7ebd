"""From tokens to hidden states in training: the three ways through a model, with the same call; `backbone_for` picks.

`FusedBackbone` does the arithmetic of Llama-shaped models (llama.py) by hand on the module's own parameters.
`PackedBackbone` calls the module with a packed line.
`PaddedBackbone` gives every sequence its own row, padded on the right.

The first two also take a slice of a line that processes share (`models/ulysses.py`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from burnish.config.model import ModelConfig
from burnish.errors import ConfigError
from burnish.models import llama
from burnish.models.attention import line_inputs, packing_problem
from burnish.models.ulysses import KEY, Ulysses, heads_problem
from burnish.ops.rms_norm import add_rms_norm
from burnish.ops.rotary import rotary, signed
from burnish.ops.swiglu import swiglu
from burnish.ops.varlen_attention import Sequences, varlen_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel


# Hidden states (T, C) of a packed line, from ids and positions (T,); those of a slice where lines are shared.
Backbone = Callable[[Tensor, Tensor, Sequences], Tensor]

# Takes a part of a model, a function that computes with it and its arguments; weights are whole while it is called.
Run = Callable[..., Any]


class PackedBackbone:
    """The module's own forward over the line, or over this process's slice of it."""

    def __init__(self, backbone: "PreTrainedModel", ulysses: Ulysses | None = None):
        self.backbone, self.ulysses = backbone, ulysses

    def __call__(self, ids: Tensor, positions: Tensor, sequences: Sequences) -> Tensor:
        context: dict[str, Any] = {}
        if self.ulysses is not None:
            ids, positions, sequences = self.ulysses.slice_of(ids, positions, sequences)
            context["ulysses"] = self.ulysses
        return self.backbone(**line_inputs(ids, positions), packed=sequences, **context).last_hidden_state[0]


class PaddedBackbone:
    def __init__(self, backbone: "PreTrainedModel"):
        self.backbone = backbone

    def __call__(self, ids: Tensor, positions: Tensor, sequences: Sequences) -> Tensor:
        lengths = torch.tensor(sequences.lengths, device=ids.device)
        real = torch.arange(sequences.longest, device=ids.device) < lengths[:, None]  # (B, L)
        rows = ids.new_zeros(real.shape)  # padding is masked, so its id means nothing; every vocabulary has a 0
        rows[real] = ids
        places = torch.arange(sequences.longest, device=ids.device).expand_as(rows)
        outputs = self.backbone(input_ids=rows, attention_mask=real.long(), position_ids=places, use_cache=False)
        return outputs.last_hidden_state[real]  # (B, L, C) → (T, C)


def backbone_for(
    module: "PreTrainedModel",
    config: ModelConfig,
    unfused: str | None,
    *,
    run: Run | None = None,
    ulysses: Ulysses | None = None,
) -> tuple[Backbone, str | None]:
    """The way through `module` that the keys ask for and the model takes, and why it is not packed where it is not.
    `unfused` is why it cannot be fused (`llama.problem`). With `run`, weights are whole only inside of that."""
    backbone, embeddings = module.get_decoder(), module.get_input_embeddings()
    if getattr(embeddings, "padding_idx", None) is not None:
        # transformers gives no gradient to the row of the padding token, which often is the end of sequence as well.
        # Padding is recognised by masks here and gets none anyway.
        embeddings.padding_idx = None
    if not config.use_remove_padding:
        unfused = "fused kernels take packed sequences, use_remove_padding=True"
    if config.use_fused_kernels is True and unfused:
        raise ConfigError(f"model.use_fused_kernels=True: {unfused}; leave the key out to have them where they fit")
    is_fused = config.use_fused_kernels is not False and unfused is None
    if ulysses is not None and not config.use_remove_padding:
        raise ConfigError(
            f"{KEY}={ulysses.size} needs model.use_remove_padding=True: processes share unpadded sequences"
        )
    problem: str | None = None
    size = ulysses.size if ulysses else 1
    if is_fused:
        problem = heads_problem(backbone.config.num_attention_heads, size)
    elif config.use_remove_padding:
        with torch.no_grad():
            trial = partial(packing_problem, backbone, size)
            problem = trial() if run is None else run(module, trial)
    if ulysses is not None and problem:
        kind = type(module).__name__.removeprefix("FSDP")  # FSDP2 gives a module another class
        raise ConfigError(f"{KEY}={size} for {kind}: {problem}; 1 fits every model")
    if is_fused:
        return FusedBackbone(backbone, run=run, ulysses=ulysses), None
    if problem or not config.use_remove_padding:
        return PaddedBackbone(backbone), problem
    return PackedBackbone(backbone, ulysses), None


class FusedBackbone:
    """Hidden states (T, C) after the last norm, of a backbone without a `llama.problem`. Gradient checkpointing follows
    the module: where it is on and the module trains, layers run again in the backward pass."""

    def __init__(self, backbone: "PreTrainedModel", *, run: Run | None = None, ulysses: Ulysses | None = None) -> None:
        self.backbone, self.ulysses = backbone, ulysses
        self.layers: list[Callable[..., tuple[Tensor, Tensor]]]
        if run is not None:  # what parameters a layer has is known while it runs
            self.layers = [
                partial(run, layer, partial(_run_numbered, backbone, number))
                for number, layer in enumerate(backbone.layers)
            ]
            return
        layers = llama.layers(backbone, llama.Projection)
        for layer in layers:  # now, before anybody else notes where the parameters are
            layer.qkv.merge()
            layer.gate_up.merge()
        self.layers = [partial(_run_layer, layer) for layer in layers]

    def __call__(self, ids: Tensor, positions: Tensor, sequences: Sequences) -> Tensor:
        backbone, attention = self.backbone, varlen_attention
        if self.ulysses is not None:
            ids, positions, sequences = self.ulysses.slice_of(ids, positions, sequences)
            attention = self.ulysses.attention
        is_checkpointed = backbone.is_gradient_checkpointing and backbone.training and torch.is_grad_enabled()
        states: Tensor = F.embedding(ids, backbone.embed_tokens.weight)  # (T, C)
        cos, sin = backbone.rotary_emb(states, positions[None])  # (1, T, D)
        shared = cos[0], signed(sin[0]), partial(attention, sequences=sequences)
        residual: Tensor | None = None
        for layer in self.layers:
            if is_checkpointed:
                states, residual = checkpoint(
                    layer, states, residual, *shared, use_reentrant=False, preserve_rng_state=False
                )
            else:
                states, residual = layer(states, residual, *shared)
        normed, _ = add_rms_norm(states, backbone.norm.weight, backbone.norm.variance_epsilon, residual)
        return normed


def _run_numbered(backbone: "PreTrainedModel", number: int, *args: Any) -> tuple[Tensor, Tensor]:
    return _run_layer(llama.layer_of(backbone, number, llama.Projection), *args)


def _run_layer(
    layer: llama.DecoderLayer[llama.Projection],
    states: Tensor,
    residual: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    attention: Callable[..., Tensor],
) -> tuple[Tensor, Tensor]:
    """What the layer adds to the residual stream, and the stream before it: two parts that the next norm sums."""
    normed, residual = add_rms_norm(states, layer.input_norm, layer.input_eps, residual)
    query, key, value = rotary(
        project(normed, layer.qkv), cos, sin,
        heads=layer.heads, q_norm=layer.q_norm, k_norm=layer.k_norm, eps=layer.head_eps,
    )  # fmt: skip
    mixed = attention(query, key, value, scale=layer.scale, window=layer.window)  # (T, H, D)
    states = project(mixed.flatten(1), layer.o)
    normed, residual = add_rms_norm(states, layer.mlp_norm, layer.mlp_eps, residual)
    return project(swiglu(project(normed, layer.gate_up)), layer.down), residual


def project(x: Tensor, projection: llama.Projection) -> Tensor:
    """x (T, C) through all layers of a projection in one product, their outputs side by side."""
    if len(projection.bases) == 1:
        out = F.linear(x, projection.bases[0].weight, projection.bases[0].bias)
    else:
        out = _Merged.apply(x, len(projection.weights), *projection.weights, *projection.biases)
    if projection.has_adapter:
        added = [(part.columns, F.linear(F.linear(x, part.a), part.b) * part.scale) for part in projection.low_rank()]
        for columns, update in added:
            out = _AddColumns.apply(out, update, columns)
    return out


class _AddColumns(torch.autograd.Function):
    """Add to some columns where they are: the gradient of the sum is that of both parts, and nothing is kept."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, update: Tensor, columns: slice) -> Tensor:
        ctx.mark_dirty(out)
        ctx.columns = columns
        out[:, columns] += update
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradients[0], gradients[0][:, ctx.columns], None


class _Merged(torch.autograd.Function):
    """A linear layer over weights one below the other, and their biases or none. What it keeps for the backward pass
    are the weights themselves, whose memory FSDP2 may free meanwhile, and no copy of them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *parameters: Tensor) -> Tensor:
        """`parameters` are the `count` weights, then the biases."""
        weights, biases = parameters[:count], parameters[count:]
        ctx.save_for_backward(x if any(ctx.needs_input_grad[2:]) else None, *weights)  # frozen weights ask for no x
        ctx.count, ctx.rows = count, [len(parameter) for parameter in parameters]
        return F.linear(x, llama.stacked(weights), llama.stacked(biases) if biases else None)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        out, count, rows = gradients[0], ctx.count, ctx.rows
        needs_x, _, *needs = ctx.needs_input_grad
        for_weights: Sequence[Tensor | None] = [None] * count
        for_biases: Sequence[Tensor | None] = [None] * (len(rows) - count)
        if any(needs[:count]):
            for_weights = (out.T @ x).split(rows[:count])
        if any(needs[count:]):
            for_biases = out.sum(0).split(rows[count:])
        return out @ llama.stacked(weights) if needs_x else None, None, *for_weights, *for_biases
