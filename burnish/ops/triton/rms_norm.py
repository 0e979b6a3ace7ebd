"""RMS norm on the GPU: one program for a row, which reads and writes each number once.

Forward, a program takes one row. Backward, it takes every so many rows, because it sums the gradient of the weight over
them in registers; the sums of all programs are added at the end. Kept for the backward pass: the rows and one number
for each, the reciprocal of its root mean square.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

PROCESSORS = 132  # of an H100 or H200
SHARED = 200_000  # bytes of shared memory of each, for rows that the backward kernel loads ahead


@triton.jit
def _kernel(
    x,  # (T, C)
    residual,  # (T, C), read where ADD
    total,  # (T, C), written where ADD: may be the residual itself
    weight,  # (C,)
    out,  # (T, C)
    scales,  # (T,) float32, written where SAVE
    eps,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    SAVE: tl.constexpr,
):
    dtype = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    start = row * C
    columns = tl.arange(0, BLOCK)
    inside = columns < C
    states = tl.load(x + start + columns, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        before = tl.load(residual + start + columns, mask=inside, other=0.0).to(tl.float32)
        rounded = (states + before).to(dtype)
        tl.store(total + start + columns, rounded, mask=inside)
        states = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(states * states) / C + eps)
    if SAVE:
        tl.store(scales + row, scale)
    normed = (states * scale).to(dtype).to(tl.float32)  # rounded before the product, as HF does
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + start + columns, (normed * factor).to(dtype), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _backward_kernel(
    d_normed,  # (T, C)
    d_total,  # (T, C), read where ADD
    total,  # (T, C)
    weight,  # (C,)
    scales,  # (T,) float32
    out,  # (T, C): gradient of the rows
    sums,  # (programs, C) float32, written where WEIGHT: gradient of the weight from the rows of each program
    rows,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    WEIGHT: tl.constexpr,
    STAGES: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    inside = columns < C
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    d_weight = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        places = tl.cast(row, tl.int64) * C + columns
        gradient = tl.load(d_normed + places, mask=inside, other=0.0).to(tl.float32)
        states = tl.load(total + places, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + row)
        normed = states * scale
        if WEIGHT:
            d_weight += gradient * normed
        gradient *= factor
        d_states = scale * (gradient - normed * (tl.sum(gradient * normed) / C))
        if ADD:
            d_states += tl.load(d_total + places, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + places, d_states.to(out.dtype.element_ty), mask=inside)
    if WEIGHT:
        tl.store(sums + tl.program_id(0).to(tl.int64) * C + columns, d_weight, mask=inside)


def launch(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None,
    total: Tensor | None = None,
    scales: Tensor | None = None,
) -> Tensor:
    """The normed rows of `x`, or of `x + residual` once that sum is in `total` (None: in `residual` itself).

    `scales` (T,) float32 gets what the backward pass reads of each row.
    """
    rows, columns = x.shape
    out = torch.empty_like(x)
    if rows:
        block = triton.next_power_of_2(columns)
        before = x if residual is None else residual
        added, saved = before if total is None else total, out if scales is None else scales
        uses = {"ADD": residual is not None, "SAVE": scales is not None}
        warps = _warps(block)
        _kernel[(rows,)](x, before, added, weight, out, saved, eps, C=columns, BLOCK=block, **uses, num_warps=warps)
    return out


def launch_backward(
    d_normed: Tensor, d_total: Tensor | None, total: Tensor, weight: Tensor, scales: Tensor, weighted: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the rows (T, C) and, where `weighted`, of `weight` (C,)."""
    rows, columns = total.shape
    out = torch.empty_like(total)
    block = triton.next_power_of_2(columns)
    warps = _warps(block)
    each = 4 if warps <= 8 else 2  # programs on a processor
    programs = min(rows, each * PROCESSORS)
    sums = total.new_empty((programs if weighted else 0, columns), dtype=torch.float32)
    if rows:
        stage = (2 if d_total is None else 3) * block * total.element_size()
        added, stages = d_normed if d_total is None else d_total, max(1, min(4, SHARED // each // stage))
        tensors = d_normed, added, total, weight, scales, out, sums
        uses = {"ADD": d_total is not None, "WEIGHT": weighted, "STAGES": stages}
        _backward_kernel[(programs,)](*tensors, rows, C=columns, BLOCK=block, **uses, num_warps=warps)
    return out, sums.sum(0).to(weight.dtype) if weighted else None


def _warps(block: int) -> int:
    return min(16, max(1, block // 256))  # eight numbers a thread: one 16-byte load in bfloat16


class AddRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        scales = x.new_empty(len(x), dtype=torch.float32)
        total = x if residual is None else torch.empty_like(x)
        normed = launch(x, weight, eps, None if residual is None else residual.contiguous(), total, scales)
        ctx.save_for_backward(total, weight, scales)
        ctx.set_materialize_grads(False)
        return normed, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_normed: Tensor | None, d_total: Tensor | None) -> tuple[Tensor | None, ...]:
        total, weight, scales = ctx.saved_tensors
        needed = ctx.needs_input_grad
        d_rows, d_weight = d_total, None
        if d_normed is not None:
            after = None if d_total is None else d_total.contiguous()
            d_rows, d_weight = launch_backward(d_normed.contiguous(), after, total, weight, scales, needed[1])
        return d_rows if needed[0] else None, d_weight, None, d_rows if needed[3] else None
