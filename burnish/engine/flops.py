"""Work per batch and peak rates, from which MFU is reported.

A device that is not in the table has no MFU: the metric is left out rather than guessed, so there is none on a CPU.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
    attention (on average half of the sequence). The embedding table counts as a tied output layer, not as a lookup."""
    config, head, table = module.config, module.get_output_embeddings(), module.get_input_embeddings().weight
    is_tied = head is not None and head.weight is table
    parameters = [p for p in module.parameters() if is_tied or p is not table]
    whole = sum(p.numel() for p in parameters)
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    per_token = 2.0 * whole + backward * (2.0 * whole + 2.0 * trained)
    per_pair = 2.0 * config.num_hidden_layers * config.hidden_size * (3 if backward else 1)
    return sum(per_token * n + per_pair * n * n for n in lengths)


def mfu(flops: float, seconds: float, device: torch.device | str) -> float | None:
    """Model FLOP utilisation: the share of the dense bf16 peak that useful work reached; None where it is not known."""
    device = torch.device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    peak = next((peak * 1e12 for part, peak in PEAK_TFLOPS.items() if part in name), None)
    return None if peak is None or seconds <= 0 else flops / seconds / peak
