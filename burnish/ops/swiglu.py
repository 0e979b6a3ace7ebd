"""The gated activation of Llama-shaped MLPs: silu(gate) * up, from the output of the merged projection.

The activation is rounded to the dtype before the product, as HF's MLP modules do.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """silu of the first half of the columns times the second: (T, 2I), contiguous, to (T, I)."""
    if gate_up.is_cuda:
        from burnish.ops.triton.swiglu import SwiGLU, launch

        return SwiGLU.apply(gate_up) if gate_up.requires_grad and torch.is_grad_enabled() else launch(gate_up)
    gate, up = gate_up.chunk(2, -1)
    active = F.silu(gate)
    return active * up if active.requires_grad else active.mul_(up)  # the gradient of `up` needs the activation
