"""From a packed line of tokens to logits, with keys and values in a paged pool: the two ways through a model.

`ModuleDecoder` calls the transformers module itself, so it takes any decoder that `models/attention.py` can page.
`FusedDecoder` (models/fused.py) does the arithmetic of Llama-shaped models with fewer, larger operations on the same
parameters. `decoder_for` picks one; both have the same call.
"""

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from burnish.models.attention import PagedPass, line_inputs
from burnish.models.fused import FusedDecoder
from burnish.ops.paged_attention import LayerKV, Paged

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Decoder(Protocol):
    def __call__(
        self, ids: Tensor, positions: Tensor, kv: Sequence[LayerKV], where: Paged, keep: Tensor | None = None
    ) -> Tensor:
        """Store the line's keys and values and give its logits. ids, positions (T,); keep (n,) → (n, V), None: all."""


class ModuleDecoder:
    """The module's own forward."""

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


def decoder_for(module: "PreTrainedModel", context: int, fused: bool = True) -> Decoder:
    """The fused decoder where it can take the module and is wanted, else the module itself."""
    if fused and FusedDecoder.problem(module) is None:
        return FusedDecoder(module, context)
    return ModuleDecoder(module)
