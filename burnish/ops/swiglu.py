"""The gated activation of Llama-shaped MLPs: silu(gate) * up, from the output of the merged projection.

Consumes (T, 2I), the gate's columns first; hands on (T, I). The activation is rounded to the dtype before the product,
as HF's MLP modules do.
"""

import torch.nn.functional as F
from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """silu of the first half of the columns times the second: (T, 2I), contiguous, to (T, I)."""
    if gate_up.is_cuda:
        from burnish.ops.triton.swiglu import launch

        return launch(gate_up)
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)
