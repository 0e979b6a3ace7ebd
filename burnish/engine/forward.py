"""Forward passes: log-probs and entropy of a language model, values of a critic, scores of a reward model.

Results are (B, R) float32 aligned with the response: the value for token t is computed at the place before it. The
output layer runs over response places only, in chunks that are recomputed in the backward pass.
"""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from burnish.config.fsdp import FSDPConfig
from burnish.config.model import ModelConfig
from burnish.engine.mesh import Mesh
from burnish.engine.packing import PackedBatch, pack_rows
from burnish.engine.sharding import computes_in, reshard, run, shard
from burnish.errors import ConfigError, ModelError
from burnish.models import llama
from burnish.models.backbones import FusedBackbone, PaddedBackbone, backbone_for
from burnish.models.ulysses import KEY, Ulysses
from burnish.ops.linear_log_probs import linear_log_probs
from burnish.ops.varlen_attention import Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
Line = tuple[Tensor, Tensor, Sequences]  # ids and positions (T,), and where the sequences are

# The outputs of `ops/linear_log_probs.py` in plain torch, from log-probabilities (n, V) and tokens (n,): for output
# layers that are no plain matrix, and for `use_fused_kernels=False`.
OUTPUTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "log_prob": lambda log_p, targets: log_p.gather(-1, targets[:, None])[:, 0],
    "entropy": lambda log_p, targets: -(log_p.exp() * log_p).sum(-1),
    "sum_pi_squared": lambda log_p, targets: (2 * log_p).exp().sum(-1),
}
CHUNK_ELEMENTS = 2**25  # logits held at a time where the plain way computes them: 128 MB in float32

# Settings of HF models that change logits after the output layer: softcap * tanh(x / softcap), factors, and a divisor.
SOFTCAP, FACTORS, DIVISOR = "final_logit_softcapping", ("logit_scale", "lm_head_multiplier"), "logits_scaling"


class Forward:
    """How one module is run. `config` says whether packed (`use_remove_padding`) and fused (`use_fused_kernels`). Over
    a `mesh` the module is sharded as `fsdp` says, and FSDP2 gathers the weights of each layer as it runs."""

    def __init__(
        self,
        module: "PreTrainedModel",
        config: ModelConfig | None = None,
        *,
        fsdp: FSDPConfig | None = None,
        mesh: Mesh | None = None,
    ):
        config = config or ModelConfig()
        self.module, kind = module, type(module).__name__  # FSDP2 gives it another class
        self.ulysses = Ulysses(mesh.ulysses) if mesh is not None and mesh.ulysses is not None else None
        unfused = llama.problem(module.get_decoder())  # before FSDP2 has hooks in it
        if mesh is not None:
            shard(module, mesh, fsdp or FSDPConfig())
        self.backbone, unpacked = backbone_for(module, config, unfused, run=run if mesh else None, ulysses=self.ulysses)
        if mesh is not None:
            reshard(module)  # what was gathered to try
        if unpacked:
            log.warning("%s is run with padding: %s", kind, unpacked)
        self.is_packed = not isinstance(self.backbone, PaddedBackbone)
        way = {PaddedBackbone: "padded", FusedBackbone: "packed and fused"}.get(type(self.backbone), "packed")
        dtype = module.dtype if mesh is None else computes_in(module)
        log.info("%s in %s: %s passes", kind, str(dtype).removeprefix("torch."), way)
        self.fuses_head = config.use_fused_kernels is not False

    def log_probs(
        self, packed: PackedBatch, temperature: float = 1.0, outputs: Sequence[str] = ("log_prob",)
    ) -> dict[str, Tensor]:
        """The named `outputs` of each response token under softmax(logits / temperature): (B, R), 0 elsewhere."""
        if unknown := set(outputs) - OUTPUTS.keys():
            raise ValueError(f"outputs={sorted(unknown)}: this pass gives {list(OUTPUTS)}")
        if temperature <= 0:
            raise ValueError(f"temperature={temperature}: log-probs need one above 0 (greedy sampling uses 1)")

        def compute() -> dict[str, Tensor]:
            head, targets = self.module.get_output_embeddings(), packed.targets

            def of_states(states: Tensor, which: slice) -> Mapping[str, Tensor]:
                if not self.fuses_head or type(head) is not nn.Linear:
                    return self._plain_log_probs(states, head, targets[which], temperature, outputs)
                scale, softcap = _logit_settings(self.module)
                return linear_log_probs(
                    states, head.weight, targets[which], tuple(outputs),
                    bias=head.bias, temperature=temperature, scale=scale, softcap=softcap,
                )  # fmt: skip

            results = self._at_places(_line(packed), packed.source, of_states)
            return {name: packed.scatter(results[name]) for name in outputs}

        return run(self.module, compute)

    def values(self, packed: PackedBatch) -> Tensor:
        """The critic's value before each response token, (B, R)."""
        return run(self.module, lambda: packed.scatter(self._head_values(_line(packed), packed.source)))

    def scores(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The reward model's score for each conversation, (B,), from right-padded ids and mask (B, L). A classifier of
        sequences reads at the last token that is not its padding token, any other at the last of all."""
        return run(self.module, self._scores, input_ids, attention_mask)

    def _scores(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        padding = self.module.config.get_text_config().pad_token_id
        if padding is not None and padding < 0:  # some configurations say -1 for none
            padding = None
        if not self.is_packed or not hasattr(self.module, "score"):
            if self.ulysses is not None:
                kind = type(self.module).__name__
                raise ConfigError(f"{KEY}={self.ulysses.size}: {kind} scores padded conversations; set it to 1")
            return _padded_scores(self.module, input_ids, attention_mask, padding)
        ids, positions, sequences = pack_rows(input_ids, attention_mask)
        ends = sequences.starts[1:].long() - 1  # (B,)
        if padding is not None and "SequenceClassification" in type(self.module).__name__:
            places = torch.arange(input_ids.shape[1], device=ids.device)
            last = torch.where((attention_mask != 0) & (input_ids != padding), places, 0).amax(-1)  # (B,)
            ends = sequences.starts[:-1].long() + last
        return self._head_values((ids, positions, sequences), ends)

    def _head_values(self, line: Line, places: Tensor) -> Tensor:
        """The output of a classifier's head at `places` (N,) of a line."""
        head: nn.Module | None = getattr(self.module, "score", None) or getattr(self.module, "classifier", None)
        if head is None:
            kind = type(self.module).__name__
            raise ModelError(f"{kind} has no head named score or classifier that gives a value per token")
        return self._at_places(line, places, lambda states, _: {"value": head(states)[:, 0].float()})["value"]

    def _at_places(
        self, line: Line, places: Tensor, of_states: Callable[[Tensor, slice], Mapping[str, Tensor]]
    ) -> Mapping[str, Tensor]:
        """Values (N,) at `places` of a line, in rising order: what `of_states` makes of the states (n, C) there. Where
        processes share the line, it gets this one's part of the places, and which of them these are."""
        own, here = slice(None), places
        if self.ulysses is not None:
            own, here = self.ulysses.own(places, len(line[0]))
        values = of_states(self.backbone(*line)[here], own)
        return values if self.ulysses is None else self.ulysses.whole(values, own, len(places))

    def _plain_log_probs(
        self, states: Tensor, head: nn.Module, targets: Tensor, temperature: float, outputs: Sequence[str]
    ) -> dict[str, Tensor]:
        scale, softcap = _logit_settings(self.module)

        def chunk(states: Tensor, targets: Tensor) -> Tensor:
            logits = head(states).float() * scale  # (n, V)
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            log_p = (logits / temperature).log_softmax(-1)
            return torch.stack([OUTPUTS[name](log_p, targets) for name in outputs])  # (outputs, n)

        size = max(1, CHUNK_ELEMENTS // self.module.get_input_embeddings().weight.shape[0])
        if len(states) <= size:
            results = chunk(states, targets)
        else:
            parts = [
                checkpoint(chunk, s, t, use_reentrant=False, preserve_rng_state=False)
                for s, t in zip(states.split(size), targets.split(size), strict=True)
            ]
            results = torch.cat(parts, dim=-1)
        return dict(zip(outputs, results, strict=True))


def _line(packed: PackedBatch) -> Line:
    return packed.input_ids, packed.positions, packed.sequences


def _logit_settings(module: "PreTrainedModel") -> tuple[float, float | None]:
    """The factor of the logits, and the bound that they are squeezed into; (1, None) for most models."""
    config = module.config.get_text_config()
    scale = 1.0 / (getattr(config, DIVISOR, None) or 1.0)
    for name in FACTORS:
        scale *= getattr(config, name, None) or 1.0
    return scale, getattr(config, SOFTCAP, None)


def _padded_scores(module: "PreTrainedModel", input_ids: Tensor, attention_mask: Tensor, padding: int | None) -> Tensor:
    """By the module's own forward, which for some models (encoders) has more than a head. A classifier of sequences
    without a padding token would take the last token of a lone conversation, and refuse several."""
    ids = input_ids.masked_fill(attention_mask == 0, padding or 0)
    inputs: dict[str, Tensor | bool] = {"input_ids": ids, "attention_mask": attention_mask}
    if "use_cache" in inspect.signature(module.forward).parameters:  # encoders have none
        inputs["use_cache"] = False
    if padding is None and hasattr(module, "score"):
        logits = module.score(module.base_model(**inputs).last_hidden_state)  # (B, L, 1)
    else:
        logits = module(**inputs).logits  # (B, 1) or (B, L, 1)
    if logits.ndim == 3:
        last = attention_mask.sum(-1) - 1  # (B,)
        logits = logits[torch.arange(len(logits), device=logits.device), last]
    return logits[:, 0].float()
