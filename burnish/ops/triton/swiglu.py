"""silu(gate) * up on the GPU: a program takes a piece of one row."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _kernel(
    gate_up,  # (T, 2I)
    out,  # (T, I)
    INNER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    dtype = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < INNER
    start = gate_up + row * 2 * INNER
    gate = tl.load(start + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(start + INNER + columns, mask=inside, other=0.0).to(tl.float32)
    active = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)  # rounded before the product, as HF does
    tl.store(out + row * INNER + columns, (active * up).to(dtype), mask=inside)


def launch(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of the two halves of the columns of `gate_up`."""
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, inner))
    if rows:
        block = min(BLOCK, triton.next_power_of_2(inner))
        _kernel[(rows, triton.cdiv(inner, block))](gate_up, out, INNER=inner, BLOCK=block, num_warps=4)
    return out
