"""RMS norm against HF's module, and its kernel against the plain version."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from burnish.ops.rms_norm import add_rms_norm, rms_norm

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
    normed, same = rms_norm(x, weight, eps)
    assert torch.equal(normed, hf_norm(x, weight, eps)) and same is x
    total = residual + x
    normed, stream = rms_norm(x, weight, eps, residual)
    assert torch.equal(stream, total) and torch.equal(normed, hf_norm(total, weight, eps))
    assert stream.data_ptr() == residual.data_ptr()  # the stream has one memory from the first layer to the last
    heads = torch.randn(4, 3, 16)  # any leading dimensions: Qwen3 norms each head
    assert torch.equal(rms_norm(heads, torch.ones(16), eps)[0], hf_norm(heads, torch.ones(16), eps))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 8), (512, 896), (33, 4096), (7, 8192), (2, 100), (3, 5120), (0, 64)])
def test_kernel(shape, dtype):
    x, residual, weight = made(*shape, dtype)
    expected, _ = rms_norm(x, weight, 1e-6)
    expected_sum, expected_stream = rms_norm(x, weight, 1e-6, residual.clone())
    stream = residual.cuda()
    found, _ = rms_norm(x.cuda(), weight.cuda(), 1e-6)
    found_sum, found_stream = rms_norm(x.cuda(), weight.cuda(), 1e-6, stream)
    assert found_stream is stream and torch.equal(stream.cpu(), expected_stream)
    # A mean summed in another order may fall on the other side of a rounding: one step of the dtype.
    step = 4e-6 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.cpu(), expected, rtol=step, atol=1e-6)
    torch.testing.assert_close(found_sum.cpu(), expected_sum, rtol=step, atol=1e-6)


def random_like(*tensors):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(x.shape, generator=generator).to(x.device, x.dtype) for x in tensors]


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("shape", [(1, 8), (5, 896), (2, 100)])
def test_gradients_are_those_of_hf(shape, residual):
    x, before, weight = (part.requires_grad_() for part in made(*shape, torch.float32))
    module = LlamaRMSNorm(len(weight), eps=1e-5)
    module.weight.data.copy_(weight.data)
    inputs = (x, before) if residual else (x,)
    stream = x + before if residual else x
    expected = module(stream), stream
    found = add_rms_norm(x, weight, 1e-5, before if residual else None)
    arriving = random_like(*expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    wanted = torch.autograd.grad(expected, (*inputs, module.weight), arriving)
    for one, other in zip(torch.autograd.grad(found, (*inputs, weight), arriving), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    x, before, weight = (part.requires_grad_() for part in made(3, 8, torch.float64))
    inputs = (x, weight, before) if residual else (x, weight)  # the gradients are the slopes
    assert torch.autograd.gradcheck(lambda x, weight, *before: add_rms_norm(x, weight, 0.1, *before), inputs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_training_rounds_as_inference_does_and_leaves_its_inputs(dtype):
    x, residual, weight = made(5, 896, dtype)
    before = x.clone(), residual.clone()
    normed, total = add_rms_norm(x, weight, 1e-6, residual)
    alone, same = add_rms_norm(x, weight, 1e-6)
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1]) and torch.equal(same, x)
    assert torch.equal(alone, rms_norm(x, weight, 1e-6)[0])
    expected, stream = rms_norm(x, weight, 1e-6, residual)
    assert torch.equal(normed, expected) and torch.equal(total, stream)


SIZES = [(1, 8), (700, 896), (33, 4096), (7, 8192), (2, 100), (3, 5120), (0, 64)]


def kernel(*inputs):
    """`add_rms_norm` by its kernels, on the device of the inputs."""
    from burnish.ops.triton.rms_norm import AddRmsNorm

    return add_rms_norm(*inputs) if inputs[0].is_cuda else AddRmsNorm.apply(*inputs, *[None] * (4 - len(inputs)))


def compare_training(x, residual, weight, wanted=(True, True)):
    """Results of the kernels, and gradients from those of the results `wanted`, against torch's."""
    # The interpreter rounds towards zero; a mean summed in another order may fall on the other side of a rounding.
    dtype, device = x.dtype, x.device
    step = 4e-6 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    inputs = [part.requires_grad_() for part in (x, weight, residual) if part is not None]
    results = kernel(x, weight, 1e-6, *inputs[2:])
    host = [None if part is None else part.detach().cpu() for part in (x, weight, residual)]
    expected = add_rms_norm(host[0], host[1], 1e-6, host[2])
    torch.testing.assert_close(results[0].cpu(), expected[0], rtol=step, atol=1e-6)
    assert torch.equal(results[1].cpu(), expected[1])

    # Backward is rounded once: it is compared with what float32 gives for the same sum.
    stream, factor = expected[1].float().requires_grad_(), host[1].float().requires_grad_()
    arriving = random_like(*results)
    pick = [i for i in range(2) if wanted[i]]
    exact = torch.autograd.grad(
        [add_rms_norm(stream, factor, 1e-6)[i] for i in pick],
        (stream, factor),
        [arriving[i].cpu().float() for i in pick],
        allow_unused=True,
    )
    found = torch.autograd.grad([results[i] for i in pick], inputs, [arriving[i] for i in pick], allow_unused=True)
    for gradient in (found[0], *found[2:]):
        assert gradient.dtype == dtype and gradient.device == device
        torch.testing.assert_close(gradient.cpu().float(), exact[0], rtol=step, atol=1e-5)
    if not wanted[0]:
        assert found[1] is None
    else:
        torch.testing.assert_close(found[1].cpu().float(), exact[1], rtol=step, atol=1e-5 * max(1, len(x)) ** 0.5)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("shape", SIZES)
def test_training_kernels(device, shape, residual):
    for dtype in DTYPES if device == "cuda" else DTYPES[:1]:
        x, before, weight = made(*shape, dtype, device)
        compare_training(x, before if residual else None, weight)
    for wanted in ((True, False), (False, True)) if residual else ():  # one of the two results may go nowhere
        compare_training(*made(5, 100, torch.float32, device), wanted=wanted)


def test_training_kernels_take_what_is_not_contiguous_and_a_frozen_weight(device):
    x, residual, weight = made(6, 100, torch.float32, device)
    compare_training(x.T.contiguous().T, residual[:, ::2].repeat(1, 2), weight)
    weight.requires_grad_()
    normed, _ = kernel(x, weight, 1e-6, residual)
    expected = torch.autograd.grad(normed, weight, torch.ones_like(normed), retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(normed.sum(), weight)[0], expected)  # an expanded gradient
    weight = weight.detach()  # frozen
    results = kernel(x.requires_grad_(), weight, 1e-6, residual)
    arriving, plain = random_like(*results), x.detach().cpu().requires_grad_()
    exact = add_rms_norm(plain, weight.cpu(), 1e-6, residual.cpu())
    expected = torch.autograd.grad(exact, plain, [part.cpu() for part in arriving])[0]
    torch.testing.assert_close(torch.autograd.grad(results, x, arriving)[0].cpu(), expected, rtol=4e-6, atol=1e-5)


def test_training_kernels_save_the_rows_and_little_more(device, saved_by):
    x, residual, weight = made(6, 100, torch.float32, device)
    assert not saved_by(lambda: kernel(x, weight, 1e-6, residual), device)[1]
    with torch.no_grad():
        assert not saved_by(lambda: kernel(x.requires_grad_(), weight, 1e-6, residual), device)[1]
    results, saved = saved_by(lambda: kernel(x, weight, 1e-6, residual), device)
    assert [tensor.shape for tensor in saved] == [(6, 100), (100,), (6,)]
    arriving = random_like(*results)
    found = torch.autograd.grad(results, x, arriving)
    again = checkpoint(lambda x: kernel(x, weight, 1e-6, residual), x, use_reentrant=False)
    assert torch.equal(found[0], torch.autograd.grad(again, x, arriving)[0])
