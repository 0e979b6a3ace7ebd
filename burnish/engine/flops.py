"""Work per batch and peak rates, from which MFU is reported.

A device that is not in the table has no MFU: the metric is left out rather than guessed, so there is none on a CPU.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EXPERTS = ".experts."  # in the names of routed experts' parameters
# Dense bf16 peak in TFLOP/s by part of the device's name; the first that matches counts.
PEAK_TFLOPS = {
    "B200": 2250.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "H800": 989.0,
    "H20": 148.0,
    "A100": 312.0,
    "A800": 312.0,
    "L40S": 362.0,
    "RTX 4090": 165.0,
    "RTX 3090": 71.0,
}


def sequence_flops(module: "PreTrainedModel", lengths: Iterable[float], *, backward: bool) -> float:
    """Operations of one pass over sequences of these lengths: 2 per parameter and token. A backward pass adds 2 for the
    gradient of the activations, and 2 for that of each parameter that is trained (with LoRA few are). Adds causal
    attention (on average half of the sequence). The embedding table counts as a tied output layer, not as a lookup; of
    a mixture of experts, those that a token is routed to."""
    config, head, table = module.config, module.get_output_embeddings(), module.get_input_embeddings().weight
    is_tied = head is not None and head.weight is table
    active = _active_experts(config)
    sizes = [
        (p.numel() * (active if EXPERTS in name else 1.0), p.requires_grad)
        for name, p in module.named_parameters()
        if is_tied or p is not table
    ]
    whole, trained = sum(size for size, _ in sizes), sum(size for size, is_trained in sizes if is_trained)
    per_token = 2.0 * whole + backward * (2.0 * whole + 2.0 * trained)
    per_pair = config.num_hidden_layers * _attention_width(config) * (3.0 if backward else 1.0)
    return sum(per_token * n + per_pair * n * n for n in lengths)


def _active_experts(config: Any) -> float:
    """The share of the routed experts that a token is sent to. Shared experts are not among EXPERTS."""
    known = [getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")]
    experts, per_token = next(filter(None, known), 0), getattr(config, "num_experts_per_tok", None)
    return per_token / experts if experts and per_token else 1.0


def _attention_width(config: Any) -> int:
    """Of a layer's scores and of what they weigh, over all heads: 2 operations each, for half of the pairs."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(heads * ((getattr(config, "qk_head_dim", None) or size) + (getattr(config, "v_head_dim", None) or size)))


def mfu(flops: float, seconds: float, device: torch.device | str) -> float | None:
    """Model FLOP utilisation: the share of the dense bf16 peak that useful work reached; None where it is not known."""
    device = torch.device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    peak = next((peak * 1e12 for part, peak in PEAK_TFLOPS.items() if part in name), None)
    return None if peak is None or seconds <= 0 else flops / seconds / peak
