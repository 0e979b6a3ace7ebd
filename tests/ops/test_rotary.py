"""Rotation and the write to the pool against HF's functions, and the kernel against the plain version."""

import pytest
import torch
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from burnish.ops.paged_attention import LayerKV
from burnish.ops.rotary import rotary_store, signed

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(4, 2, 16), (14, 2, 64), (3, 3, 24), (32, 8, 128), (1, 1, 8), (5, 1, 80)]  # H, Hkv, D
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
        parts = self.qkv.view(1, len(self.qkv), -1, self.size)
        query, key, value = parts.split((self.heads, self.kv_heads, self.kv_heads), 2)
        if self.q_norm is not None:
            query, key = hf_norm(query, self.q_norm), hf_norm(key, self.k_norm)
        cos, sin = self.cos[self.positions][None], self.sin[self.positions][None]
        query, key = apply_rotary_pos_emb(query.transpose(1, 2), key.transpose(1, 2), cos, sin)
        keys, values = (part.clone().flatten(0, 1) for part in (self.kv.keys, self.kv.values))
        for i, slot in enumerate(self.slots.tolist()):
            keys[slot], values[slot] = key[0, :, i], value[0, i]
        return query[0].transpose(0, 1), keys, values


def hf_norm(x, weight):
    module = Qwen3RMSNorm(len(weight), eps=EPS).to(weight.device, weight.dtype)
    with torch.no_grad():
        module.weight.copy_(weight)
        return module(x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norms", [False, True], ids=["plain", "head-norms"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rounds_as_hf_does(shape, norms, dtype):
    case = Case(shape, 7, dtype, norms)
    query, keys, values = case.expected()
    before = case.qkv.clone()
    found = case.run()
    assert torch.equal(found, query) and found.shape == (7, case.heads, case.size)
    assert torch.equal(case.kv.keys.flatten(0, 1), keys) and torch.equal(case.kv.values.flatten(0, 1), values)
    assert torch.equal(case.qkv, before)


def test_rows_looked_up_before():
    case, other = (Case((4, 2, 16), 7, torch.bfloat16, True) for _ in range(2))
    assert torch.equal(case.run(), other.run(rows_looked_up=True)) and torch.equal(case.kv.keys, other.kv.keys)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norms", [False, True], ids=["plain", "head-norms"])
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
