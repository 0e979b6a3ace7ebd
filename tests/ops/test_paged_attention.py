"""Paged attention: the torch path against an explicit float64 reference, the kernels against the torch path.

The kernels run on a GPU (`-m gpu`) or, where Triton is installed, in its interpreter: TRITON_INTERPRET=1 pytest …
"""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from burnish.ops import paged_attention as ops
from burnish.ops.paged_attention import LayerKV, Paged, paged_attention, paged_attention_torch, store, store_torch

BLOCK = 16


def reference(query: Tensor, kv: LayerKV, where: Paged, scale: float, window=None, softcap=None) -> Tensor:
    """Token by token and head by head, in float64."""
    out = torch.zeros(query.shape, dtype=torch.float64)
    group = query.shape[1] // kv.keys.shape[2]
    starts = range(len(where.lengths) + 1) if where.starts is None else where.starts.tolist()
    for row, length in enumerate(where.lengths.tolist()):
        slots = [int(where.tables[row, p // BLOCK]) * BLOCK + p % BLOCK for p in range(length)]
        keys, values = (x.flatten(0, 1)[slots].double().cpu() for x in (kv.keys, kv.values))  # (L, Hkv, D)
        count = starts[row + 1] - starts[row]
        for i, head in itertools.product(range(count), range(query.shape[1])):
            position = length - count + i
            seen = slice(max(0, position - window + 1) if window else 0, position + 1)
            token = starts[row] + i
            scores = keys[seen, head // group] @ query[token, head].double().cpu() * scale
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            out[token, head] = scores.softmax(0) @ values[seen, head // group]
    return out


def problem(lengths, counts=None, heads=(4, 2), size=16, seed=0, dtype=torch.float32, shared=0):
    """A pool where only the sequences' own slots hold numbers: the rest is NaN, and tables point nowhere past lengths.

    The first `shared` blocks are the same for every sequence. `counts`: tokens of each in the line; None: decode.
    """
    generator = torch.Generator().manual_seed(seed)
    used = [-(-length // BLOCK) for length in lengths]
    free = (torch.randperm(sum(used) + shared + 3, generator=generator) + 1).tolist()
    common = [free.pop() for _ in range(shared)]
    tables = torch.full((len(lengths), max(used) + 2), 2**30, dtype=torch.int32)
    blocks = 1 + sum(used) + shared + 3
    keys, values = (torch.full((blocks, BLOCK, heads[1], size), math.nan) for _ in range(2))
    slots = []
    for row, (length, n) in enumerate(zip(lengths, used, strict=True)):
        own = common[:n] + [free.pop() for _ in range(n - shared)]
        tables[row, :n] = torch.tensor(own)
        at = torch.tensor([own[p // BLOCK] * BLOCK + p % BLOCK for p in range(length)])
        for pool in (keys, values):
            pool.flatten(0, 1)[at] = torch.randn(length, heads[1], size, generator=generator)
        slots.append(at[length - (counts[row] if counts else 1) :])
    starts = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32) if counts else None
    packed = torch.cat(slots)
    where = Paged(
        slots=packed,
        tables=tables,
        lengths=torch.tensor(lengths, dtype=torch.int32),
        starts=starts,
        longest_query=max(counts) if counts else 1,
        longest=max(lengths),
    )
    query = torch.randn(len(packed), heads[0], size, generator=generator)
    return query.to(dtype), LayerKV(keys.to(dtype), values.to(dtype)), where


LENGTHS = [1, 15, 16, 17, 31, 32, 33, 100, 7, 64]
PREFILLS = {
    "whole": ([5, 16, 40], [5, 16, 40]),
    "continued": ([50, 16, 40, 33], [7, 1, 24, 17]),
    "mixed with decode": ([50, 20, 90, 16, 31], [1, 20, 1, 3, 1]),
    "with an empty row": ([20, 30, 40], [20, 0, 3]),
}
VARIANTS = {
    "plain": {},
    "window": {"window": 9},
    "window of blocks": {"window": 32},
    "softcap": {"softcap": 1.5},
    "both": {"window": 20, "softcap": 2.0},
}
LINES = {name: (*line, (6, 2), 16) for name, line in PREFILLS.items()} | {
    "decode, mha": (LENGTHS, None, (3, 3), 16),
    "decode, gqa": (LENGTHS, None, (6, 2), 16),
    "decode, one kv head": (LENGTHS, None, (7, 1), 24),
    "decode, odd size": (LENGTHS, None, (4, 2), 13),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("line", LINES)
def test_attention_is_over_the_tokens_of_each_ones_own_sequence_up_to_itself(line, variant, monkeypatch):
    """Where each has one token with the usual groups of rows, row by row, and all in one group."""
    query, kv, where = problem(*LINES[line])
    expected = reference(query, kv, where, 0.4, **VARIANTS[variant])
    for most in (ops.GROUP, 0, 2**40):
        monkeypatch.setattr(ops, "GROUP", most)
        out = paged_attention(query, kv, replace(where, plans={}), scale=0.4, **VARIANTS[variant])
        torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=0)


def test_shared_first_blocks_a_slice_as_query_and_tokens_past_the_last_sequence():
    query, kv, where = problem([40, 47, 70, 33], heads=(6, 2), shared=2)
    assert len(where.tables[:, 0].unique()) == 1
    out = paged_attention(query, kv, where, scale=0.4)
    torch.testing.assert_close(out.double(), reference(query, kv, where, 0.4), atol=2e-6, rtol=0)

    query, kv, where = problem([40, 16, 33], [40, 1, 5], heads=(6, 2))
    wide = torch.randn(len(query), 10, 16)
    wide[:, 2:8] = query
    expected = paged_attention(query, kv, where, scale=0.4)
    torch.testing.assert_close(paged_attention(wide[:, 2:8], kv, where, scale=0.4), expected)
    out = paged_attention(torch.cat([query, torch.full_like(query, math.nan)]), kv, where, scale=0.4)
    torch.testing.assert_close(out[: len(query)], expected)
    assert not out[len(query) :].any(), "zeros"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("counts", [None, [40, 16, 1, 5]], ids=["decode", "prefill"])
def test_half_precision_is_computed_in_float32(dtype, counts):
    query, kv, where = problem([40, 16, 33, 100], counts, heads=(6, 2), dtype=dtype)
    for variant in VARIANTS.values():
        out = paged_attention(query, kv, where, scale=0.4, **variant)
        assert out.dtype == dtype
        # One rounding of the output, and of the weights in torch's own attention.
        expected = reference(query, kv, where, 0.4, **variant)
        torch.testing.assert_close(out.double(), expected, atol=2 * torch.finfo(dtype).eps, rtol=torch.finfo(dtype).eps)


def test_what_is_stored_is_attended_to_and_padding_goes_to_slot_0():
    query, kv, where = problem([17, 40], heads=(6, 2))
    padded = Paged(
        slots=torch.cat([where.slots, torch.zeros(2, dtype=torch.int64)]),
        tables=torch.cat([where.tables, torch.zeros_like(where.tables)]),
        lengths=torch.cat([where.lengths, torch.ones(2, dtype=torch.int32)]),
        starts=None,
        longest=40,
    )
    before = [kv.keys.clone(), kv.values.clone()]
    key, value = torch.randn(2, 4, 2, 16)
    store(kv, padded.slots, key, value)
    for pool, old, new in ((kv.keys, before[0], key), (kv.values, before[1], value)):
        torch.testing.assert_close(pool.flatten(0, 1)[where.slots], new[:2])
        changed = (pool.nan_to_num() != old.nan_to_num()).flatten(2).any(-1).flatten().nonzero()[:, 0]
        assert changed.tolist() == sorted({0, *where.slots.tolist()})
    out = paged_attention(torch.cat([query, query]), kv, padded, scale=0.4)
    torch.testing.assert_close(out[:2].double(), reference(query, kv, where, 0.4), atol=2e-6, rtol=0)
    assert out[2:].isfinite().all()


@pytest.fixture
def kernels():
    from burnish.ops.triton import paged_attention as kernels

    return kernels


def on(device: str, query: Tensor, kv: LayerKV, where: Paged) -> tuple[Tensor, LayerKV, Paged]:
    """A problem on a device, with the addresses of its pool."""
    keys, values = kv.keys.to(device), kv.values.to(device)
    moved = {name: getattr(where, name).to(device) for name in ("slots", "tables", "lengths")}
    starts = None if where.starts is None else where.starts.to(device)
    addresses = torch.tensor([keys.data_ptr(), values.data_ptr()], device=device)
    return query.to(device), LayerKV(keys, values, addresses), replace(where, **moved, starts=starts)


TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
# Every way through the kernels in float32; bfloat16, which the interpreter cannot multiply, at models' shapes below.
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)


def compare(kernels, device, query, kv, where, scale=0.3, **variant) -> None:
    """The kernels against the torch path on the same numbers in float32."""
    exact = LayerKV(kv.keys.float(), kv.values.float())
    expected = paged_attention_torch(query.float(), exact, where, scale=scale, **variant)
    out = kernels.paged_attention(*on(device, query, kv, where), scale=scale, **variant)
    assert out.dtype == query.dtype and out.shape == query.shape
    torch.testing.assert_close(out.float().cpu(), expected, atol=TOLERANCE[query.dtype], rtol=0)


@DTYPES
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("line", LINES)
def test_kernels_give_what_the_torch_path_gives(kernels, device, dtype, line, variant):
    compare(kernels, device, *problem(*LINES[line], dtype=dtype), **VARIANTS[variant])


@pytest.mark.parametrize("programs", [1, 10, 64, 10**6])
def test_splits_are_joined(kernels, monkeypatch, device, programs):
    """One split; two; several, of which short rows leave some empty; as many as there are tiles."""
    monkeypatch.setattr(kernels, "PROGRAMS", programs)
    problem_ = problem([1, 300, 64, 65, 130], heads=(6, 2))
    compare(kernels, device, *problem_)
    compare(kernels, device, *problem_, window=70)


def test_splits_fill_the_gpu_and_no_more_and_kernels_need_the_addresses(kernels, device):
    assert kernels.split_count(512, 2, longest=2048, tile=64) == 1
    assert kernels.split_count(64, 2, longest=2048, tile=64) == 4
    assert 10 <= kernels.split_count(1, 2, longest=700, tile=64) <= 11
    assert kernels.split_count(1, 2, longest=2048, tile=64) == 32
    assert kernels.split_count(1, 1, longest=10**6, tile=64) == kernels.SPLITS
    assert kernels.split_count(1, 1, longest=1, tile=64) == 1
    _, kv, where = problem([3])
    with pytest.raises(ValueError, match="addresses"):
        kernels.store(kv, where.slots, kv.keys[0, :1], kv.values[0, :1])


def test_prefill_kernel_takes_lines_of_many_sequences(kernels, device):
    """Tiles are found by bisection: sequences of none, one and several tiles in every order, and padding at the end."""
    counts = [1, 0, 40, 1, 1, 0, 0, 90, 22, 21, 1, 43, 0]
    lengths = [count + extra for count, extra in zip(counts, itertools.cycle([1, 16, 0, 37]), strict=False)]
    lengths = [max(1, length) for length in lengths]
    query, kv, where = problem(lengths, counts, heads=(6, 2))
    longer = torch.cat([query, query[:50]])
    compare(kernels, device, longer, kv, where)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_store_kernel_takes_slices_of_the_projection(kernels, device, dtype):
    _, kv, where = problem([17, 40, 3], [5, 40, 1], heads=(9, 3), size=24, dtype=dtype)
    qkv = torch.randn(len(where.slots), 15, 24).to(dtype)
    expected = LayerKV(kv.keys.clone(), kv.values.clone())
    store_torch(expected, where.slots, qkv[:, 9:12], qkv[:, 12:])
    _, kv, where = on(device, qkv, kv, where)
    qkv = qkv.to(device)
    kernels.store(kv, where.slots, qkv[:, 9:12], qkv[:, 12:])
    torch.testing.assert_close(kv.keys.cpu(), expected.keys, equal_nan=True, atol=0, rtol=0)
    torch.testing.assert_close(kv.values.cpu(), expected.values, equal_nan=True, atol=0, rtol=0)


REAL = {
    "Qwen2.5-0.5B": ((14, 2), 64),
    "SmolLM2-135M": ((9, 3), 64),
    "Llama-3-8B": ((32, 8), 128),
    "phi-2": ((32, 32), 80),
    "Phi-3-mini": ((32, 32), 96),
    "gemma-2-2b": ((8, 4), 256),
    "falcon-7b": ((71, 1), 64),
}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("model", "dtype"),
    [*((model, torch.bfloat16) for model in REAL), ("Qwen2.5-0.5B", torch.float16), ("gemma-2-2b", torch.float32)],
    ids=str,
)
def test_kernels_at_the_shapes_of_models(kernels, model, dtype):
    heads, size = REAL[model]
    lengths = torch.randint(1, 700, (24,), generator=torch.Generator().manual_seed(1)).tolist()
    counts = [min(length, count) for length, count in zip(lengths, [1, 700, 33, 0, 1, 130] * 4, strict=True)]
    for line in (None, counts):
        for variant in ({}, {"window": 100, "softcap": 30.0}):
            given = problem(lengths, line, heads=heads, size=size, dtype=dtype)
            compare(kernels, "cuda", *given, scale=size**-0.5, **variant)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [2, 300], ids=["in splits", "in one"])
def test_a_captured_graph_follows_the_pool_to_another_address(kernels, rows):
    query, kv, where = on("cuda", *problem([200, 33] * (rows // 2), heads=(14, 2), size=64))
    key, value = torch.randn(2, rows, 2, 64, device="cuda")

    def step() -> Tensor:
        store(kv, where.slots, key, value)
        return paged_attention(query, kv, where, scale=0.125)

    step()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    graph.replay()
    expected = out.clone()

    old = kv.keys, kv.values
    kv.keys, kv.values = kv.keys.flip(0).contiguous(), kv.values.flip(0).contiguous()
    where.tables.copy_((len(kv.keys) - 1 - where.tables).clamp(min=0))
    where.slots.copy_((len(kv.keys) - 1 - where.slots // BLOCK) * BLOCK + where.slots % BLOCK)
    for pool in old:
        pool.fill_(math.nan)
    kv.addresses.copy_(torch.tensor([kv.keys.data_ptr(), kv.values.data_ptr()]))
    out.zero_()
    graph.replay()
    torch.testing.assert_close(out, expected, atol=0, rtol=0)

    query.copy_(torch.randn_like(query))
    where.lengths.sub_(7)
    graph.replay()
    expected = paged_attention_torch(*on("cpu", query, kv, where), scale=0.125)
    torch.testing.assert_close(out.cpu(), expected, atol=2e-5, rtol=0)
