"""silu(gate) * up on the GPU: a program takes a piece of one row. Kept for the backward pass: the input."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

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


@triton.jit
def _backward_kernel(
    d_out,  # (T, I)
    gate_up,  # (T, 2I)
    out,  # (T, 2I): gradient of gate_up
    INNER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    dtype = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < INNER
    places = row * 2 * INNER + columns
    gradient = tl.load(d_out + row * INNER + columns, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_up + places, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + INNER + places, mask=inside, other=0.0).to(tl.float32)
    sigmoid = 1.0 / (1.0 + tl.exp(-gate))
    d_gate = gradient * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
    tl.store(out + places, d_gate.to(dtype), mask=inside)
    tl.store(out + INNER + places, (gradient * gate * sigmoid).to(dtype), mask=inside)


def launch(gate_up: Tensor) -> Tensor:
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, inner))
    if rows:
        block = min(BLOCK, triton.next_power_of_2(inner))
        _kernel[(rows, triton.cdiv(inner, block))](gate_up, out, INNER=inner, BLOCK=block, num_warps=4)
    return out


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        ctx.save_for_backward(gate_up)
        return launch(gate_up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        (rows, inner), out, d_out = d_out.shape, torch.empty_like(gate_up), d_out.contiguous()
        if rows:
            block = min(BLOCK, triton.next_power_of_2(inner))
            grid = (rows, triton.cdiv(inner, block))
            _backward_kernel[grid](d_out, gate_up, out, INNER=inner, BLOCK=block, num_warps=4)
        return out
