"""From tokens to hidden states in training: the three ways through a model.

`FusedBackbone` (fused_training.py) does the arithmetic of Llama-shaped models with fewer, larger operations on the
module's own parameters. `PackedBackbone` calls the module itself with a packed line, which any decoder that
`models/attention.py` can hand lines to takes. `PaddedBackbone` gives every sequence a row of its own, padded on the
right: for the rest, and for who asks for it. All three have the same call; `backbone_for` picks. Where several
processes share each line (`models/ulysses.py`), `PackedBackbone` hands on the states of this process's slice.
"""

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from burnish.config.model import ModelConfig
from burnish.errors import ConfigError
from burnish.models import llama
from burnish.models.attention import line_inputs, packing_problem
from burnish.models.fused_training import FusedBackbone
from burnish.models.ulysses import KEY, Ulysses
from burnish.ops.varlen_attention import Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Backbone(Protocol):
    def __call__(self, ids: Tensor, positions: Tensor, sequences: Sequences) -> Tensor:
        """Hidden states (T, C) of a packed line: ids and positions (T,). Those of a slice where lines are shared."""


class PackedBackbone:
    """The module's own forward over the line, or over this process's slice of it."""

    def __init__(self, backbone: "PreTrainedModel", ulysses: Ulysses | None = None):
        self.backbone, self.ulysses = backbone, ulysses

    def __call__(self, ids: Tensor, positions: Tensor, sequences: Sequences) -> Tensor:
        context: dict[str, Any] = {}
        if self.ulysses is not None:
            ids, positions, sequences = self.ulysses.slice_of(ids, positions, sequences)
            context["ulysses"] = self.ulysses
        hidden = self.backbone(**line_inputs(ids, positions), packed=sequences, **context).last_hidden_state
        states: Tensor = hidden[0]
        return states


class PaddedBackbone:
    """The module's own forward over right-padded rows."""

    def __init__(self, backbone: "PreTrainedModel"):
        self.backbone = backbone

    def __call__(self, ids: Tensor, positions: Tensor, sequences: Sequences) -> Tensor:
        lengths = torch.tensor(sequences.lengths, device=ids.device)
        real = torch.arange(sequences.longest, device=ids.device) < lengths[:, None]  # (B, L)
        rows = ids.new_zeros(real.shape)  # padding is masked, so its id means nothing; every vocabulary has a 0
        rows[real] = ids
        places = torch.arange(sequences.longest, device=ids.device).expand_as(rows)
        hidden = self.backbone(
            input_ids=rows, attention_mask=real.long(), position_ids=places, use_cache=False
        ).last_hidden_state  # (B, L, C)
        states: Tensor = hidden[real]
        return states


def backbone_for(
    module: "PreTrainedModel", config: ModelConfig, *, by_layers: bool = False, ulysses: Ulysses | None = None
) -> tuple[Backbone, str | None]:
    """The way through `module` that the keys ask for and the model takes, and why it is not packed where it is not.

    With `by_layers` each layer is called by itself, because its weights are whole only then. Processes can share lines
    alone (`ulysses`, which needs `by_layers`), so a model that takes none is a ConfigError.
    """
    backbone = module.get_decoder()
    _train_every_embedding(module)
    unfused = llama.problem(backbone)
    if not config.use_remove_padding:
        unfused = "fused kernels take packed sequences, use_remove_padding=True"
    if by_layers:
        unfused = "they read the weights of all layers, and these are sharded over several processes"
    if config.use_fused_kernels is True and unfused:
        raise ConfigError(f"model.use_fused_kernels=True: {unfused}; leave the key out to have them where they fit")
    if ulysses is not None:
        return _shared(module, config, ulysses), None
    if config.use_fused_kernels is not False and unfused is None:
        return FusedBackbone(backbone), None
    if not config.use_remove_padding:
        return PaddedBackbone(backbone), None
    if problem := packing_problem(backbone):
        return PaddedBackbone(backbone), problem
    return PackedBackbone(backbone), None


def _shared(module: "PreTrainedModel", config: ModelConfig, ulysses: Ulysses) -> PackedBackbone:
    """The way of processes that share each line."""
    asked = f"{KEY}={ulysses.size}"
    if not config.use_remove_padding:
        raise ConfigError(f"{asked} needs model.use_remove_padding=True: processes share lines of unpadded sequences")
    if problem := packing_problem(module.get_decoder(), ulysses.size):
        raise ConfigError(f"{asked} for {type(module).__name__}: {problem}; 1 fits every model")
    return PackedBackbone(module.get_decoder(), ulysses)


def _train_every_embedding(module: "PreTrainedModel") -> None:
    """transformers keeps gradients from the row of the padding token, which often is the end of sequence as well.

    Padding is told by masks here and gets no gradient anyway; a token of that id in a sequence is one like any other.
    """
    embeddings = module.get_input_embeddings()
    if getattr(embeddings, "padding_idx", None) is not None:
        embeddings.padding_idx = None
