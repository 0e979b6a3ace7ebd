"""Attention over a packed line against each sequence alone, written out in float64."""

import pytest
import torch

from burnish.ops import varlen_attention as ops
from burnish.ops.varlen_attention import Sequences, varlen_attention

LINES = {
    "uneven": [5, 1, 9, 3, 17, 1, 8],
    "one sequence": [11],
    "one token": [1],
    "single tokens": [1, 1, 1],
    "of one length": [6, 6, 6],
    "as long as a window": [2, 4, 3],
    "one longer than a window": [2, 5, 4],
    "powers of two": [4, 8, 2, 16, 1, 5, 9],
}
VARIANTS = {
    "plain": {},
    "window": {"window": 4},
    "window of itself": {"window": 1},
    "wide window": {"window": 40},
    "softcap": {"softcap": 0.7},
    "both": {"window": 3, "softcap": 0.7},
}
HEADS = {"all heads": (4, 4), "grouped": (6, 2), "one for all": (4, 1)}
SCALE = 0.9


def made(lengths, heads, *, size=8, dtype=torch.float32, device="cpu"):
    """Queries, keys and values of a line, and the gradient that comes back for what they gather."""
    random = torch.Generator().manual_seed(sum(lengths) + heads[0])
    counts = heads[0], heads[1], heads[1], heads[0]
    line = [torch.randn(sum(lengths), count, size, generator=random).to(device, dtype) for count in counts]
    return [part.requires_grad_() for part in line[:3]], line[3]


def alone(query, key, value, *, scale, window=None, softcap=None):
    """One sequence (n, heads, D), place by place."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(repeats, dim=1) for part in (key, value))
    places = []
    for place in range(len(query)):
        seen = slice(0 if window is None else max(0, place - window + 1), place + 1)
        scores = torch.einsum("hd,nhd->hn", query[place], key[seen]) * scale
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        places.append(torch.einsum("hn,nhd->hd", scores.softmax(-1), value[seen]))
    return torch.stack(places)


def compare(lengths, heads, tolerance, *, size=8, dtype=torch.float32, device="cpu", **variant):
    line, upstream = made(lengths, heads, size=size, dtype=dtype, device=device)
    out = varlen_attention(*line, Sequences.of(lengths, device), scale=SCALE, **variant)
    exact = [part.detach().double().requires_grad_() for part in line]
    pieces = zip(*(part.split(lengths) for part in exact), strict=True)
    wanted = torch.cat([alone(*piece, scale=SCALE, **variant) for piece in pieces])
    assert out.shape == line[0].shape and out.dtype == dtype
    torch.testing.assert_close(out.double(), wanted, atol=tolerance, rtol=tolerance)
    gradients = torch.autograd.grad(out, line, upstream)
    for gradient, expected in zip(gradients, torch.autograd.grad(wanted, exact, upstream.double()), strict=True):
        largest = float(expected.abs().max())
        torch.testing.assert_close(gradient.double(), expected, atol=tolerance * max(largest, 1), rtol=tolerance)


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("lengths", LINES.values(), ids=LINES)
def test_each_token_gathers_from_its_own_sequence_up_to_itself(lengths, variant, heads):
    compare(lengths, heads, 1e-5, **variant)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_other_sequences_have_no_gradient(variant):
    """Not even a zero times something infinite: what a sequence is stacked with is never touched by it."""
    lengths, row = [9, 3, 12, 4], slice(12, 24)
    (query, key, value), _ = made(lengths, (4, 2))
    with torch.no_grad():
        for part in (query, key, value):
            part[:9] = torch.inf
    out = varlen_attention(query, key, value, Sequences.of(lengths, "cpu"), scale=SCALE, **variant)
    assert bool(out[9:].isfinite().all())
    for gradient in torch.autograd.grad(out[row].sum(), (query, key, value)):
        assert torch.cat([gradient[9:12], gradient[24:]]).eq(0).all() and gradient[row].isfinite().all()
    assert gradient[row].any()  # of the values


def test_starts_a_line_of_nothing_and_stacks_that_hold_every_token_once_and_less_padding_than_tokens():
    found, nothing = Sequences.of([3, 1, 2], "cpu"), Sequences.of([], "cpu")
    assert found.starts.tolist() == [0, 3, 4, 6] and found.starts.dtype == torch.int32 and found.longest == 3
    assert nothing.starts.tolist() == [0] and nothing.longest == 0
    (query, key, value), _ = made([], (4, 2))
    for variant in VARIANTS.values():
        out = varlen_attention(query, key, value, nothing, scale=SCALE, **variant)
        assert out.shape == (0, 4, 8) and out.requires_grad
        out.sum().backward()
    lengths = torch.randint(1, 300, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    stacks = Sequences.of(lengths, "cpu").stacks
    places = torch.cat([stack.places for stack in stacks])
    assert sorted(places.tolist()) == list(range(sum(lengths)))
    assert all(len(stack.slots.unique()) == len(stack.places) for stack in stacks)
    assert sum(stack.rows * stack.longest for stack in stacks) < 2 * sum(lengths)
    for variant in ({}, {"window": 3}):  # in bfloat16 it is off by the size of one rounding
        compare(LINES["uneven"], (4, 2), 3e-2, dtype=torch.bfloat16, **variant)


LONG = [700, 1, 33, 256, 129, 64, 700]


@pytest.mark.gpu
@pytest.mark.parametrize("variant", [{}, {"window": 100}, {"softcap": 0.7}], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("heads", "size"), [((14, 2), 64), ((8, 8), 128), ((4, 2), 40)], ids=str)
def test_the_flash_kernel_is_as_near_to_the_truth_as_torchs_plain_path(heads, size, dtype, variant, monkeypatch):
    line, upstream = made(LONG, heads, size=size, dtype=dtype, device="cuda")
    settings = {"scale": size**-0.5, **variant}

    def run(parts, upstream):
        out = varlen_attention(*parts, Sequences.of(LONG, "cuda"), **settings)
        return [out, *torch.autograd.grad(out, parts, upstream)]

    found = run(line, upstream)
    monkeypatch.setattr(ops, "HALF", ())
    plain = run(line, upstream)
    exact = run([part.detach().double().requires_grad_() for part in line], upstream.double())
    for one, other, truth in zip(found, plain, exact, strict=True):
        assert bool(one.isfinite().all())
        allowed = 2 * float((other - truth).abs().max()) + 1e-3 * float(truth.abs().max())
        assert float((one - truth).abs().max()) <= allowed


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_float32_on_a_gpu_takes_the_plain_path(variant):
    compare(LINES["uneven"], (6, 2), 1e-5, device="cuda", **variant)
    compare([130, 7, 64], (4, 4), 1e-4, size=64, device="cuda", **variant)
    for lengths in ([1], [1, 1, 1], [19]):  # by the flash kernel
        compare(lengths, (4, 2), 3e-2, size=16, dtype=torch.bfloat16, device="cuda")
