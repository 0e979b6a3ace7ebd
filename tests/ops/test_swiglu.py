"""silu(gate) * up against HF's MLP, and its kernel against the plain version."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from burnish.ops.swiglu import swiglu

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def made(rows, inner, dtype):
    return torch.randn(rows, 2 * inner, generator=torch.Generator().manual_seed(rows + inner)).mul(4).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inner"), [(1, 8), (5, 72), (3, 1000)])
def test_values_and_gradients_are_those_of_hf(rows, inner, dtype):
    """HF's MLP with its projections taken out is the activation alone."""
    gate_up = made(rows, inner, dtype)
    mlp = LlamaMLP(LlamaConfig(hidden_size=8, intermediate_size=inner, num_attention_heads=1))
    mlp.gate_proj, mlp.up_proj, mlp.down_proj = _Columns(0, inner), _Columns(inner, 2 * inner), nn.Identity()
    before = gate_up.clone()
    assert torch.equal(swiglu(gate_up), mlp(gate_up))
    assert torch.equal(gate_up, before)
    assert torch.equal(swiglu(gate_up.requires_grad_()), mlp(gate_up))
    if dtype == torch.float32:
        arriving = torch.randn(rows, inner)
        found, expected = (torch.autograd.grad(f(gate_up), gate_up, arriving)[0] for f in (swiglu, mlp))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert torch.autograd.gradcheck(swiglu, made(3, 5, torch.float64).requires_grad_())


class _Columns(nn.Module):
    def __init__(self, start, end):
        super().__init__()
        self.span = slice(start, end)

    def forward(self, x):
        return x[:, self.span]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inner"), [(1, 8), (512, 4864), (33, 14336), (7, 1000), (0, 64)])
def test_kernel(rows, inner, dtype):
    gate_up = made(rows, inner, dtype)
    # The exponential may differ in its last bit and fall on the other side of a rounding.
    step = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(swiglu(gate_up.cuda()).cpu(), swiglu(gate_up), rtol=step, atol=1e-6)


def kernel(gate_up):
    """`swiglu` by its kernels, on the device of its input."""
    from burnish.ops.triton.swiglu import SwiGLU

    return swiglu(gate_up) if gate_up.is_cuda else SwiGLU.apply(gate_up)


@pytest.mark.parametrize(("rows", "inner"), [(1, 8), (70, 4864), (9, 14336), (7, 1000), (5, 27), (0, 64)])
def test_training_kernels(device, rows, inner):
    for dtype in DTYPES if device == "cuda" else DTYPES[:1]:
        gate_up = made(rows, inner, dtype)
        given = gate_up.to(device).requires_grad_()
        out = kernel(given)
        step = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(out.detach().cpu(), swiglu(gate_up), rtol=step, atol=1e-6)
        arriving = torch.randn(inner, rows, generator=torch.Generator().manual_seed(2)).to(dtype).T
        exact = gate_up.float().requires_grad_()  # backward is rounded once
        (expected,) = torch.autograd.grad(swiglu(exact), exact, arriving.float())
        (found,) = torch.autograd.grad(out, given, arriving.to(device))
        assert found.dtype == dtype
        torch.testing.assert_close(found.cpu().float(), expected, rtol=step, atol=1e-5)
    extremes = torch.tensor([[-1e4, -90.0, 0.0, 90.0, 1e4, 1.0, 1.0, 1.0, 1.0, 1.0]])
    given = extremes.to(device).requires_grad_()
    out = kernel(given)
    torch.testing.assert_close(out.detach().cpu(), swiglu(extremes))
    (found,) = torch.autograd.grad(out.sum(), given)
    (expected,) = torch.autograd.grad(swiglu(extremes.requires_grad_()).sum(), extremes)
    torch.testing.assert_close(found.cpu(), expected)


def test_training_kernels_save_their_input_alone(device, saved_by):
    gate_up = made(4, 40, torch.float32).to(device)
    assert not saved_by(lambda: kernel(gate_up), device)[1]
    with torch.no_grad():
        assert not saved_by(lambda: kernel(gate_up.requires_grad_()), device)[1]
    out, saved = saved_by(lambda: kernel(gate_up), device)
    assert [tensor.data_ptr() for tensor in saved] == [gate_up.data_ptr()]
    again = checkpoint(kernel, gate_up, use_reentrant=False)
    assert torch.equal(*(torch.autograd.grad(one.sum(), gate_up)[0] for one in (out, again)))
