"""Rotation and the write to the pool against HF's functions, and the kernel against the plain version."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from burnish.ops.paged_attention import LayerKV
from burnish.ops.rotary import rotary, rotary_store, signed

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(4, 2, 16), (14, 2, 64), (3, 3, 24), (32, 8, 128), (1, 1, 8), (5, 1, 80)]  # H, Hkv, D
NORMS = pytest.mark.parametrize("norms", [False, True], ids=["plain", "head-norms"])
EPS, BLOCKS, BLOCK = 1e-6, 6, 16


class Case:
    """Inputs of `rotary_store` on one device."""

    def __init__(self, shape, tokens, dtype, norms, device="cpu"):
        self.heads, self.kv_heads, self.size = shape
        generator = torch.Generator().manual_seed(tokens)

        def random(*shape):
            return torch.randn(*shape, generator=generator).to(device, dtype)

        self.qkv = random(tokens, (self.heads + 2 * self.kv_heads) * self.size) * 2
        angles = torch.rand(50, self.size // 2, generator=generator) * 7
        both = torch.cat((angles, angles), -1)
        self.cos, self.sin = both.cos().to(device, dtype), both.sin().to(device, dtype)
        self.positions = torch.randint(50, (tokens,), generator=generator).to(device)
        self.slots = (torch.randperm((BLOCKS - 1) * BLOCK, generator=generator)[:tokens] + BLOCK).to(device)
        self.q_norm, self.k_norm = (random(self.size), random(self.size)) if norms else (None, None)
        pool = [random(BLOCKS, BLOCK, self.kv_heads, self.size) for _ in range(2)]
        self.kv = LayerKV(*pool, torch.tensor([part.data_ptr() for part in pool], device=device))

    def run(self, rows_looked_up=False):
        cos, sin, positions = self.cos, signed(self.sin), self.positions
        if rows_looked_up:
            cos, sin, positions = cos[positions, None], sin[positions, None], None
        norms = dict(q_norm=self.q_norm, k_norm=self.k_norm, eps=EPS)
        return rotary_store(self.qkv, positions, cos, sin, self.kv, self.slots, heads=self.heads, **norms)

    def expected(self):
        """Queries (T, H, D), keys and values (N*S, Hkv, D) by HF's own functions."""
        query, key, value = self.hf()
        keys, values = (part.clone().flatten(0, 1) for part in (self.kv.keys, self.kv.values))
        for i, slot in enumerate(self.slots.tolist()):
            keys[slot], values[slot] = key[i], value[i]
        return query, keys, values

    def hf(self):
        """Queries (T, H, D), keys and values (T, Hkv, D) by HF's own functions."""
        parts = self.qkv.view(1, len(self.qkv), -1, self.size)
        query, key, value = parts.split((self.heads, self.kv_heads, self.kv_heads), 2)
        if self.q_norm is not None:
            query, key = hf_norm(query, self.q_norm), hf_norm(key, self.k_norm)
        cos, sin = self.cos[self.positions][None], self.sin[self.positions][None]
        query, key = apply_rotary_pos_emb(query.transpose(1, 2), key.transpose(1, 2), cos, sin)
        return query[0].transpose(0, 1), key[0].transpose(0, 1), value[0]

    def inputs(self):
        """What `rotary` is differentiable in, with gradients switched on."""
        return [part.requires_grad_() for part in (self.qkv, self.q_norm, self.k_norm) if part is not None]

    def train(self, function=rotary):
        """Queries, keys and values by `rotary`."""
        rows = self.cos[self.positions], signed(self.sin)[self.positions]
        return function(self.qkv, *rows, heads=self.heads, q_norm=self.q_norm, k_norm=self.k_norm, eps=EPS)

    def arriving(self):
        """Gradients of the three results, as strided as attention may hand them on."""
        generator = torch.Generator().manual_seed(3)
        shape = (self.heads, len(self.qkv), self.size)
        query = torch.randn(*shape, generator=generator).to(self.qkv).transpose(0, 1)  # heads first in memory
        shape = (len(self.qkv), 2 * self.kv_heads, self.size)
        key = torch.randn(*shape, generator=generator).to(self.qkv)[:, self.kv_heads :]  # part of another
        shape = (self.size, len(self.qkv), self.kv_heads)
        value = torch.randn(*shape, generator=generator).to(self.qkv).permute(1, 2, 0)  # numbers of a head apart
        return query, key, value


def hf_norm(x, weight):
    module = Qwen3RMSNorm(len(weight), eps=EPS)
    del module.weight
    module.weight = weight  # the tensor itself: its gradient is asked for
    return module(x)


@pytest.mark.parametrize("dtype", DTYPES)
@NORMS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rounds_as_hf_does(shape, norms, dtype):
    case = Case(shape, 7, dtype, norms)
    query, keys, values = case.expected()
    before = case.qkv.clone()
    for found, expected in zip(case.train(), case.hf(), strict=True):
        assert torch.equal(found, expected)
    looked_up = Case(shape, 7, dtype, norms)
    found = case.run()
    assert torch.equal(looked_up.run(rows_looked_up=True), found) and torch.equal(looked_up.kv.keys, case.kv.keys)
    assert torch.equal(found, query) and found.shape == (7, case.heads, case.size)
    assert torch.equal(case.kv.keys.flatten(0, 1), keys) and torch.equal(case.kv.values.flatten(0, 1), values)
    assert torch.equal(case.qkv, before)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@NORMS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 70])
def test_kernel(shape, norms, dtype, tokens):
    case, plain = Case(shape, tokens, dtype, norms, "cuda"), Case(shape, tokens, dtype, norms)
    found, expected = case.run(), plain.run()
    # Without norms every product is rounded as on the CPU. In float32 the compiler may fuse a product and a sum.
    step = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps if norms else 0
    pairs = [(found, expected), (case.kv.keys, plain.kv.keys)]
    for one, other in pairs:
        torch.testing.assert_close(one.cpu(), other, rtol=step, atol=4 * step)
    assert torch.equal(case.kv.values.cpu(), plain.kv.values)


@pytest.mark.gpu
def test_the_kernel_follows_the_addresses():
    """A captured graph must write to a pool that was made again, though its tensors were others at capture."""
    case = Case((4, 2, 16), 9, torch.bfloat16, False, "cuda")
    case.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.run()
    keys, values = torch.zeros_like(case.kv.keys), torch.zeros_like(case.kv.values)
    case.kv.addresses.copy_(torch.tensor([keys.data_ptr(), values.data_ptr()]))
    graph.replay()
    torch.cuda.synchronize()
    _, expected_keys, expected_values = case.expected()
    rows = case.slots
    assert torch.equal(keys.flatten(0, 1)[rows], expected_keys[rows])
    assert torch.equal(values.flatten(0, 1)[rows], expected_values[rows])


@NORMS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_those_of_hf_and_the_slopes(shape, norms):
    case = Case(shape, 7, torch.float32, norms)
    inputs, arriving = case.inputs(), case.arriving()
    expected = torch.autograd.grad(case.hf(), inputs, arriving)
    for one, other in zip(torch.autograd.grad(case.train(), inputs, arriving), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    if shape != SHAPES[0]:
        return
    case = Case((2, 1, 4), 3, torch.float64, norms)
    rows = case.cos[:3], case.sin[:3]

    def function(qkv, *weights):
        return rotary(qkv, *rows, heads=2, eps=0.1, **dict(zip(("q_norm", "k_norm"), weights, strict=False)))

    assert torch.autograd.gradcheck(function, case.inputs())


def kernel(qkv, cos, sin, *, heads, q_norm, k_norm, eps):
    """`rotary` by its kernels, on the device of its inputs."""
    from burnish.ops.triton.rotary import Rotary

    if qkv.is_cuda:
        return rotary(qkv, cos, sin, heads=heads, q_norm=q_norm, k_norm=k_norm, eps=eps)
    return Rotary.apply(qkv, cos, sin, heads, q_norm, k_norm, eps)


@NORMS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 20])
def test_training_kernels(device, monkeypatch, shape, norms, tokens):
    from burnish.ops.triton import rotary as kernels

    monkeypatch.setattr(kernels, "PROGRAMS", 8)  # several tokens for each program of the backward kernel
    for dtype in DTYPES if device == "cuda" else DTYPES[:1]:
        case, plain = Case(shape, tokens, dtype, norms, device), Case(shape, tokens, dtype, norms)
        inputs = case.inputs()
        results = case.train(kernel)
        # In float32 the compiler may fuse a product and a sum.
        step = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps if norms else 0
        for one, other in zip(results, plain.train(), strict=True):
            torch.testing.assert_close(one.detach().cpu(), other, rtol=step, atol=4 * step)
        found = torch.autograd.grad(results, inputs, case.arriving())
        # Backward is rounded once: it is compared with what float32 gives for the same numbers.
        arriving = [part.float() for part in plain.arriving()]
        for name in ("qkv", "cos", "sin", *(("q_norm", "k_norm") if norms else ())):
            setattr(plain, name, getattr(plain, name).float())
        inputs = plain.inputs()
        expected = torch.autograd.grad(plain.train(), inputs, arriving)
        step = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == dtype
            torch.testing.assert_close(one.cpu().float(), other, rtol=step, atol=3e-5)


def test_training_kernels_take_an_expanded_gradient(device):
    case = Case((4, 2, 16), 5, torch.float32, True, device)
    inputs, results = case.inputs(), case.train(kernel)
    expected = torch.autograd.grad(results, inputs, [torch.ones_like(part) for part in results], retain_graph=True)
    found = torch.autograd.grad(sum(part.sum() for part in results), inputs)
    assert all(map(torch.equal, found, expected))
    (one,) = torch.autograd.grad(case.train(kernel)[1].sum(), case.qkv)  # the others' gradients are none
    parts = one.view(5, 8, 16)
    assert not parts[:, :4].any() and parts[:, 4:6].any() and not parts[:, 6:].any()


@NORMS
def test_training_kernels_keep_their_input_only_for_norms(device, norms, saved_by):
    case = Case((4, 2, 16), 5, torch.float32, norms, device)

    def is_view(value):
        return value.untyped_storage().data_ptr() == case.qkv.untyped_storage().data_ptr()

    assert is_view(case.train(kernel)[2])
    inputs = case.inputs()
    with torch.no_grad():
        assert not saved_by(lambda: case.train(kernel), device)[1]
    results, saved = saved_by(lambda: case.train(kernel), device)
    assert [tuple(t.shape) for t in saved] == ([(5, 128), (16,), (16,)] if norms else []) + [(5, 16), (5, 16)]
    assert is_view(results[2]) == norms  # values that are a view of `qkv` keep the whole of it
    again = checkpoint(lambda: case.train(kernel), use_reentrant=False)
    found, other = (torch.autograd.grad(one, inputs, case.arriving()) for one in (results, again))
    assert all(map(torch.equal, found, other))
