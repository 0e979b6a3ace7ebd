"""silu(gate) * up against HF's MLP, and its kernel against the plain version."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from burnish.ops.swiglu import swiglu

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def made(rows, inner, dtype):
    return torch.randn(rows, 2 * inner, generator=torch.Generator().manual_seed(rows + inner)).mul(4).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inner"), [(1, 8), (5, 72), (3, 1000)])
def test_rounds_as_hf_does(rows, inner, dtype):
    """HF's MLP with its projections taken out is the activation alone."""
    gate_up = made(rows, inner, dtype)
    mlp = LlamaMLP(LlamaConfig(hidden_size=8, intermediate_size=inner, num_attention_heads=1))
    mlp.gate_proj, mlp.up_proj, mlp.down_proj = _Columns(0, inner), _Columns(inner, 2 * inner), nn.Identity()
    before = gate_up.clone()
    assert torch.equal(swiglu(gate_up), mlp(gate_up))
    assert torch.equal(gate_up, before)


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


@pytest.mark.gpu
def test_kernel_of_extremes():
    extremes = torch.tensor([[-1e4, -90.0, 0.0, 90.0, 1e4, 1.0, 1.0, 1.0, 1.0, 1.0]])
    torch.testing.assert_close(swiglu(extremes.cuda()).cpu(), swiglu(extremes))
