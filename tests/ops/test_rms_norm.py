"""RMS norm against HF's module, and its kernel against the plain version."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from burnish.ops.rms_norm import rms_norm

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def made(rows, columns, dtype, device="cpu"):
    generator = torch.Generator().manual_seed(rows + columns)
    x, residual = torch.randn(2, rows, columns, generator=generator).mul(3).to(device, dtype)
    return x, residual, torch.randn(columns, generator=generator).to(device, dtype)


def hf_norm(x, weight, eps):
    module = LlamaRMSNorm(len(weight), eps=eps).to(weight.device, weight.dtype)
    with torch.no_grad():
        module.weight.copy_(weight)
        return module(x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 8), (5, 896), (3, 4096), (2, 100)])
@pytest.mark.parametrize("eps", [1e-6, 1e-1])
def test_rounds_as_hf_does(shape, dtype, eps):
    x, residual, weight = made(*shape, dtype)
    assert torch.equal(rms_norm(x, weight, eps), hf_norm(x, weight, eps))
    total = residual + x
    normed, stream = rms_norm(x, weight, eps, residual)
    assert torch.equal(stream, total) and torch.equal(normed, hf_norm(total, weight, eps))
    assert stream.data_ptr() == residual.data_ptr()  # the stream has one memory from the first layer to the last


def test_rows_of_heads():
    """Any leading dimensions: the norm of each head of Qwen3 is one over the last."""
    x = torch.randn(4, 3, 16)
    assert torch.equal(rms_norm(x, torch.ones(16), 1e-6), hf_norm(x, torch.ones(16), 1e-6))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 8), (512, 896), (33, 4096), (7, 8192), (2, 100), (3, 5120), (0, 64)])
def test_kernel(shape, dtype):
    x, residual, weight = made(*shape, dtype)
    expected = rms_norm(x, weight, 1e-6)
    expected_sum, expected_stream = rms_norm(x, weight, 1e-6, residual.clone())
    stream = residual.cuda()
    found = rms_norm(x.cuda(), weight.cuda(), 1e-6)
    found_sum, found_stream = rms_norm(x.cuda(), weight.cuda(), 1e-6, stream)
    assert found_stream is stream and torch.equal(stream.cpu(), expected_stream)
    # A mean summed in another order may fall on the other side of a rounding: one step of the dtype.
    step = 4e-6 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.cpu(), expected, rtol=step, atol=1e-6)
    torch.testing.assert_close(found_sum.cpu(), expected_sum, rtol=step, atol=1e-6)
