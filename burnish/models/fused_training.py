"""A hand-fused pass of training through Llama-shaped decoders, on the parameters of the HF module itself.

Consumes a packed line of tokens and hands on its hidden states, differentiable in every parameter that asks for a
gradient. Per layer: four matrix products, attention over the line, and five small kernels, forward and backward. What
it computes is what the module's own forward computes; a test holds the two together.

Gradient checkpointing follows the module: where it is on and the module trains, a layer keeps its input alone and is
run again in the backward pass.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from burnish.models import llama
from burnish.ops.rms_norm import add_rms_norm
from burnish.ops.rotary import rotary, signed
from burnish.ops.swiglu import swiglu
from burnish.ops.varlen_attention import Sequences, varlen_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class FusedBackbone:
    """`FusedBackbone(backbone)(ids, positions, sequences)`: hidden states (T, C) after the last norm.

    See `llama.problem` for the backbones that it takes.
    """

    def __init__(self, backbone: "PreTrainedModel") -> None:
        if problem := llama.problem(backbone):
            raise ValueError(f"the fused pass cannot run this model: {problem}")
        self.backbone = backbone
        self.blocks = llama.blocks(backbone)
        for block in self.blocks:  # now, before anybody else notes where the parameters lie
            block.qkv.merge()
            block.gate_up.merge()

    def __call__(self, ids: Tensor, positions: Tensor, sequences: Sequences) -> Tensor:
        """ids, positions (T,) → (T, C)."""
        backbone = self.backbone
        is_checkpointed = backbone.is_gradient_checkpointing and backbone.training and torch.is_grad_enabled()
        states: Tensor = F.embedding(ids, backbone.embed_tokens.weight)  # (T, C)
        cos, sin = backbone.rotary_emb(states, positions[None])  # (1, T, D)
        where = cos[0], signed(sin[0]), sequences
        residual: Tensor | None = None
        for block in self.blocks:
            if is_checkpointed:
                states, residual = checkpoint(
                    _layer, block, states, residual, *where, use_reentrant=False, preserve_rng_state=False
                )
            else:
                states, residual = _layer(block, states, residual, *where)
        normed, _ = add_rms_norm(states, backbone.norm.weight, backbone.norm.variance_epsilon, residual)
        return normed


def _layer(
    block: llama.Block, states: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor, sequences: Sequences
) -> tuple[Tensor, Tensor]:
    """What the layer adds to the residual stream, and the stream before it: two parts that the next norm sums."""
    normed, residual = add_rms_norm(states, block.input_norm, block.input_eps, residual)
    query, key, value = rotary(
        project(normed, block.qkv), cos, sin,
        heads=block.heads, q_norm=block.q_norm, k_norm=block.k_norm, eps=block.head_eps,
    )  # fmt: skip
    mixed = varlen_attention(query, key, value, sequences, scale=block.scale, window=block.window)  # (T, H, D)
    states = project(mixed.flatten(1), block.o)
    normed, residual = add_rms_norm(states, block.mlp_norm, block.mlp_eps, residual)
    return project(swiglu(project(normed, block.gate_up)), block.down), residual


def project(x: Tensor, projection: llama.Projection) -> Tensor:
    """x (T, C) through all layers of a projection in one product, their outputs side by side."""
    if len(projection.bases) == 1:
        out = F.linear(x, projection.bases[0].weight, projection.bases[0].bias)
    else:
        weights, biases = projection.weights, projection.biases
        out = _Merged.apply(x, *projection.merged(), len(weights), *weights, *biases)
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
    """A linear layer over a merged weight (and bias), whose gradients go to the parameters that it is merged of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, count: int, *parameters: Tensor) -> Tensor:
        """`parameters` are the `count` weights, then their biases or none."""
        ctx.save_for_backward(x if any(ctx.needs_input_grad[4:]) else None, weight)  # frozen weights ask for no x
        ctx.count, ctx.rows = count, [len(parameter) for parameter in parameters]
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        out, count, rows = gradients[0], ctx.count, ctx.rows
        needs_x, _, _, _, *needs = ctx.needs_input_grad
        for_weights: Sequence[Tensor | None] = [None] * count
        for_biases: Sequence[Tensor | None] = [None] * (len(rows) - count)
        if any(needs[:count]):
            for_weights = (out.T @ x).split(rows[:count])
        if any(needs[count:]):
            for_biases = out.sum(0).split(rows[count:])
        return out @ weight if needs_x else None, None, None, None, *for_weights, *for_biases
