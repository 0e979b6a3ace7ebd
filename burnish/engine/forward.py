"""Forward passes: log-probs and entropy of a language model, values of a critic, scores of a reward model.

Consumes a `Packed` and an HF module; hands on (B, R) float32 tensors aligned with the response: the figure for token
t is computed at the position before it. The output layer runs over response positions only and in chunks that are
recomputed in the backward pass, so memory does not grow with vocabulary x tokens. A reward model reads whole
conversations of its own, padded on the right, and gives one figure for each.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from burnish.engine.packing import Packed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What a pass can give per response token, from log-probabilities over the vocabulary (n, V) and the tokens (n,).
OUTPUTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "log_prob": lambda log_p, targets: log_p.gather(-1, targets[:, None])[:, 0],
    "entropy": lambda log_p, targets: -(log_p.exp() * log_p).sum(-1),
    "sum_pi_squared": lambda log_p, targets: (2 * log_p).exp().sum(-1),
}
CHUNK_ELEMENTS = 2**25  # logits held at a time: 128 MB in float32

# Settings of HF models that change logits after the output layer. Where one is set, the model computes them itself.
LOGIT_SETTINGS = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0, "lm_head_multiplier": 1.0}


def log_probs(
    module: "PreTrainedModel", packed: Packed, temperature: float = 1.0, outputs: Sequence[str] = ("log_prob",)
) -> dict[str, Tensor]:
    """The named `outputs` of each response token under softmax(logits / temperature): (B, R), 0 elsewhere."""
    if unknown := set(outputs) - set(OUTPUTS):
        raise ValueError(f"outputs={sorted(unknown)}: this pass gives {list(OUTPUTS)}")
    if temperature <= 0:
        raise ValueError(f"temperature={temperature}: log-probs need a temperature above 0 (greedy sampling uses 1)")
    states, logits_of = _states(module, packed)  # (N, H)

    def chunk(states: Tensor, targets: Tensor) -> Tensor:
        log_p = (logits_of(states).float() / temperature).log_softmax(-1)  # (n, V)
        return torch.stack([OUTPUTS[name](log_p, targets) for name in outputs])  # (outputs, n)

    size = max(1, CHUNK_ELEMENTS // _vocabulary(module))
    results = _in_chunks(chunk, states, packed.targets, size)
    return {name: packed.scatter(result) for name, result in zip(outputs, results, strict=True)}


def values(module: "PreTrainedModel", packed: Packed) -> Tensor:
    """The critic's figure before each response token, (B, R)."""
    per_token = module(**_inputs(packed)).logits[..., 0]  # (B, L)
    return packed.to_response(packed.from_padded(per_token).float())


def sequence_scores(module: "PreTrainedModel", input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """The reward model's figure for each conversation, (B,), from right-padded ids and mask (B, L).

    A classifier of sequences picks its token itself: the last that is not its padding token. One that has no such
    token would take the last token of a lone conversation, and refuse several; so the last token it is, as for a
    classifier of tokens.
    """
    padding = module.config.get_text_config().pad_token_id
    if padding is not None and padding < 0:  # some configurations say -1 for none
        padding = None
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


def _inputs(packed: Packed) -> dict[str, Tensor | bool]:
    input_ids, attention_mask = packed.padded()
    position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "position_ids": position_ids,
        "use_cache": False,
    }


def _states(module: "PreTrainedModel", packed: Packed) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """What predicts each response token (N, H), and the function from it to logits."""
    inputs = _inputs(packed)
    config = module.config
    if any(getattr(config, name, plain) not in (None, plain) for name, plain in LOGIT_SETTINGS.items()):
        logits = module(**inputs).logits  # (B, L, V)
        return packed.from_padded(logits)[packed.source], lambda logits: logits
    hidden = module.get_decoder()(**inputs).last_hidden_state
    return packed.from_padded(hidden)[packed.source], module.get_output_embeddings()


def _vocabulary(module: "PreTrainedModel") -> int:
    return int(module.get_output_embeddings().weight.shape[0])


def _in_chunks(chunk: Callable[[Tensor, Tensor], Tensor], states: Tensor, targets: Tensor, size: int) -> Tensor:
    if len(states) <= size:
        return chunk(states, targets)
    parts = [
        checkpoint(chunk, s, t, use_reentrant=False, preserve_rng_state=False)
        for s, t in zip(states.split(size), targets.split(size), strict=True)
    ]
    return torch.cat(parts, dim=-1)
