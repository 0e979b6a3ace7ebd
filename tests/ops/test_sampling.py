"""Device sampling: the noise, the draw, and how rows move on; on a GPU the kernels against the twin.

The tests marked gpu also run without one, on Triton's interpreter: TRITON_INTERPRET=1 pytest -m gpu.
"""

import os
from dataclasses import fields

import numpy as np
import pytest
import torch

from burnish.ops import sampling
from burnish.ops.sampling import STOPS, DecodeRows, advance, sample_and_advance, uniforms
from burnish.rollout import base
from burnish.rollout.in_process import sample

INF, NAN = float("inf"), float("nan")
KERNEL_DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


def make_rows(count: int, temperature: float | list[float] = 1.0, left: int = 5, seed: int = 0) -> DecodeRows:
    generator = np.random.default_rng(seed)
    return DecodeRows(
        ids=torch.arange(count) + 100,
        positions=torch.arange(count) + 200,
        left=torch.full((count,), left, dtype=torch.int32),
        drawn=torch.arange(count) % 7,
        seeds=torch.from_numpy(generator.integers(0, 2**64, count, dtype=np.uint64).view(np.int64)),
        temperature=torch.as_tensor(temperature, dtype=torch.float32).expand(count).clone(),
        top_k=torch.zeros(count, dtype=torch.int32),
        top_p=torch.ones(count),
        min_p=torch.zeros(count),
        stops=torch.full((count, STOPS), -1),
        out=torch.full((3, count), -7.0),
    )


def to(rows: DecodeRows, device: str) -> DecodeRows:
    return DecodeRows(*[getattr(rows, field.name).to(device, copy=True) for field in fields(DecodeRows)])


def noise(rows: DecodeRows) -> np.ndarray:
    return base.uniforms(rows.seeds.tolist(), rows.drawn.numpy())


def least_noise(rows: DecodeRows) -> DecodeRows:
    """The rows with seeds whose noise at place 0 is 0: the mix of -0x9E37… is 0."""
    mixed = int(base._mix64(np.zeros(1, np.uint64))[0])
    seed = np.array([(-0x9E3779B97F4A7C15 - mixed) % 2**64], np.uint64).view(np.int64)
    rows.seeds[:], rows.drawn[:] = int(seed[0]), 0
    assert noise(rows).tolist() == [0.0] * len(rows.ids)
    return rows


def test_uniforms_are_those_of_the_rollout_contract_bit_for_bit():
    generator = np.random.default_rng(0)
    edges = [0, 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1]
    seeds = np.concatenate([np.array(edges, np.uint64), generator.integers(0, 2**64, 5000, dtype=np.uint64)])
    positions = np.concatenate([np.arange(len(edges)), generator.integers(0, 200_000, 5000)])
    assert (seeds.view(np.int64) < 0).any()
    got = uniforms(torch.from_numpy(seeds.view(np.int64)), torch.from_numpy(positions))
    assert got.dtype == torch.float64
    np.testing.assert_array_equal(got.numpy(), base.uniforms(seeds, positions))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocabulary", [1, 17, 4097])
def test_the_draw_is_that_of_the_rollout_sampler(vocabulary, dtype, monkeypatch):
    monkeypatch.setattr(sampling, "ELEMENTS_AT_ONCE", vocabulary * 20)  # 64 rows in four parts
    temperature = [0.0, 1.0, 0.7, 2.0] * 16
    rows = make_rows(64, temperature)
    logits = (torch.randn(64, vocabulary, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    wanted = [base.Sampling(temperature=t) for t in temperature]
    tokens, log_probs = sample(logits, wanted, torch.from_numpy(noise(rows)))
    sample_and_advance(logits, rows)
    assert rows.ids.tolist() == tokens.tolist() == rows.out[0].tolist()
    torch.testing.assert_close(rows.out[1], log_probs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_come_as_often_as_their_probabilities_say(temperature):
    draws = 40_000
    logits = torch.tensor([0.3, -INF, 1.2, -2.0, 0.0, 0.9, -INF])
    exact = torch.softmax(logits.double() / temperature, dim=0)
    rows = make_rows(draws, temperature)
    sample_and_advance(logits.expand(draws, -1), rows)
    counts = torch.bincount(rows.ids, minlength=7).double()
    assert counts[logits == -INF].tolist() == [0, 0]
    possible = exact > 0
    chi_square = ((counts - draws * exact)[possible] ** 2 / (draws * exact[possible])).sum()
    assert chi_square < 23.5  # four degrees of freedom: p of one in ten thousand


def test_a_row_draws_the_same_wherever_it_lies_and_differently_at_the_next_place():
    logits = torch.zeros(8, 1000)
    rows, alone = make_rows(8), make_rows(8)
    sample_and_advance(logits, rows)
    first = rows.ids.clone()
    sample_and_advance(logits[:1], alone, index=torch.tensor([5]))
    assert alone.ids[5] == first[5]
    sample_and_advance(logits, rows)
    assert (rows.ids != first).sum() >= 7
    assert len(set(first.tolist())) >= 7  # seeds differ
    row, seen = make_rows(1, left=3), []
    for _ in range(5):  # steps follow each other until the row is idle
        sample_and_advance(torch.zeros(1, 50), row)
        seen.append((row.out[2].item(), row.ids.item(), row.positions.item()))
    drawn = (base.uniforms([row.seeds.item()] * 3, [0, 1, 2]) * 50).astype(int).tolist()
    last = (0.0, drawn[2], 203)
    assert seen == [(1.0, drawn[0], 201), (1.0, drawn[1], 202), (2.0, drawn[2], 203), last, last]


def test_greedy_takes_the_first_of_the_greatest_and_does_not_scale():
    logits = torch.tensor([[1.0, 3.0, 3.0, -INF, 3.0], [-INF, -INF, -5.0, -5.0, -6.0]])
    rows = make_rows(2, 0.0)
    sample_and_advance(logits, rows)
    assert rows.ids.tolist() == [1, 2]
    torch.testing.assert_close(rows.out[1], torch.log_softmax(logits, dim=-1)[[0, 1], [1, 2]])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong", [NAN, INF])
def test_logits_without_a_distribution_give_token_0_and_nan(temperature, wrong):
    logits = torch.zeros(3, 9)
    logits[0, 4], logits[1] = wrong, -INF
    rows = make_rows(3, temperature)
    sample_and_advance(logits, rows)
    assert rows.out[1].isnan().tolist() == [True, True, False]
    assert rows.ids[:2].tolist() == [0, 0]
    assert 0 <= rows.ids[2] < 9
    least = least_noise(make_rows(1))
    sample_and_advance(torch.tensor([[-INF, -INF, 0.0, 1.0]]), least)
    assert least.ids.tolist() == [2], "tokens without probability are skipped"


KINDS = [  # temperature, top-k, top-p, min-p
    (1.0, 0, 1.0, 0.0),
    (0.0, 2, 0.5, 0.3),
    (1.0, 1, 1.0, 0.0),
    (0.7, 3, 1.0, 0.0),
    (1.0, 11, 1.0, 0.0),
    (1.0, 10**6, 1.0, 0.0),
    (1.0, 0, 1e-9, 0.0),
    (1.0, 0, 1e-50, 0.0),
    (1.3, 0, 0.3, 0.0),
    (1.0, 0, 0.9, 0.0),
    (0.6, 0, 0.999, 0.0),
    (1.0, 0, 1.0, 1.0),
    (1.0, 0, 1.0, 0.1),
    (2.0, 7, 0.8, 0.0),
    (1.0, 7, 0.2, 0.05),
    (1.0, 5, 1.0, 0.4),
    (1.5, 0, 0.7, 0.02),
]


def shapes(vocabulary: int) -> dict[str, torch.Tensor]:
    """Logits that are hard to truncate, (V,) each."""
    normal = torch.randn(vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 3
    some = torch.arange(vocabulary) % 3 == 1
    signs = torch.where(some, -0.0, 0.0)
    signs[::5] = -1.0
    return {
        "plain": normal,
        "tied": (normal * 0.7).round(),
        "flat": torch.zeros(vocabulary),
        "flat below 0": torch.full((vocabulary,), -3.25),
        "zeros of both signs": signs,
        "hardly any": torch.where(torch.arange(vocabulary) % 7 == 0, normal.round(), -INF),
        "one": torch.where(torch.arange(vocabulary) == vocabulary // 2, 0.0, -INF),
        "far up": normal.round() + 1000.0,
        "far down": normal - 5000.0,
        "wide": normal * 1e4,
        "near 0": normal * 1e-30,
    }


def truncated_rows(count: int, vocabulary: int, seed: int = 0) -> tuple[torch.Tensor, DecodeRows]:
    """Logits (n, V) and rows that have every kind with every shape of them, in one batch."""
    lines = list(shapes(vocabulary).values())
    rows = make_rows(count, [KINDS[i % len(KINDS)][0] for i in range(count)], seed=seed)
    rows.top_k[:] = torch.tensor([KINDS[i % len(KINDS)][1] for i in range(count)])
    rows.top_p[:] = torch.tensor([KINDS[i % len(KINDS)][2] for i in range(count)])
    rows.min_p[:] = torch.tensor([KINDS[i % len(KINDS)][3] for i in range(count)])
    return torch.stack([lines[i // len(KINDS) % len(lines)] for i in range(count)]), rows


def expected(logits: torch.Tensor, rows: DecodeRows, row: int, off: float = 0.0, u_off: float = 0.0) -> int:
    """The token that the row draws from its logits (V,), written down token by token.

    `off` and `u_off` are errors, of the borders of truncation (relative) and of the noise.
    """
    temperature, top_p, min_p = (float(x[row]) for x in (rows.temperature, rows.top_p, rows.min_p))
    if temperature == 0:
        return int(logits.argmax())
    p = torch.log_softmax(logits.float() / temperature, dim=0).double().exp().numpy()
    order = sorted(range(len(p)), key=lambda token: (-float(logits[token]), token))
    if rows.top_k[row] > 0:
        order = order[: rows.top_k[row]]
    if top_p < 1:
        masses = np.concatenate([[0.0], np.cumsum(p[order])])
        order = [t for i, t in enumerate(order) if i == 0 or masses[i] < top_p * (1 + off) * masses[-1]]
    order = sorted(token for token in order if p[token] >= min_p * (1 + off) * p.max() or token == order[0])
    cumulative = np.cumsum(p[order])
    u = min(max(noise(rows)[row] + u_off, 0.0), 1 - 2**-53)
    return order[int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [1, 17, 300])
def test_truncation_keeps_what_a_walk_down_the_tokens_keeps(vocabulary, dtype):
    logits, rows = truncated_rows(len(KINDS) * 11 * 4, vocabulary)
    logits = logits.to(dtype)
    want = [expected(logits[i], rows, i) for i in range(len(logits))]
    full = torch.log_softmax(logits.float() / rows.temperature.where(rows.temperature > 0, 1.0)[:, None], dim=-1)
    sample_and_advance(logits, rows, truncates=True)
    assert rows.ids.tolist() == want
    assert torch.equal(rows.out[1], full.gather(1, rows.ids[:, None])[:, 0])


def test_truncation_is_off_unless_asked_for():
    logits, rows = truncated_rows(400, 50)
    plain = to(rows, "cpu")
    plain.top_k[:], plain.top_p[:], plain.min_p[:] = 0, 1, 0
    again = to(plain, "cpu")
    sample_and_advance(logits, rows)
    sample_and_advance(logits, plain)
    sample_and_advance(logits, again, truncates=True)
    assert rows.ids.tolist() == plain.ids.tolist() == again.ids.tolist()
    for wrong in (NAN, INF, -INF):  # without a distribution: token 0 and NaN
        logits, rows = truncated_rows(len(KINDS), 40)
        logits[:, slice(None) if wrong == -INF else 20] = wrong
        sample_and_advance(logits, rows, truncates=True)
        assert rows.out[1].isnan().all() and not rows.ids.any()


def test_index_names_the_rows_and_source_their_logits():
    logits = torch.full((3, 10), -INF)
    logits[0, 2] = logits[1, 5] = logits[2, 7] = 0.0
    rows = make_rows(6)
    sample_and_advance(logits, rows, index=torch.tensor([4, 1]), source=torch.tensor([2, 0]))
    assert rows.ids.tolist() == [100, 2, 102, 103, 7, 105]
    assert rows.positions.tolist() == [200, 202, 202, 203, 205, 205]
    assert rows.out[2].tolist() == [-7, 1, -7, -7, 1, -7]  # the others are not touched
    sample_and_advance(logits, rows, source=torch.tensor([1, 1]))
    assert rows.ids.tolist() == [5, 5, 102, 103, 7, 105]
    sample_and_advance(logits, rows, index=torch.tensor([5, 0, 2]))
    assert rows.ids.tolist() == [5, 5, 7, 103, 7, 2]
    sample_and_advance(torch.zeros(0, 9), rows)
    sample_and_advance(torch.zeros(2, 9), rows, index=torch.zeros(0, dtype=torch.int64))
    assert rows.ids.tolist() == [5, 5, 7, 103, 7, 2], "no rows, no change"
    logits = torch.zeros(2, 10)  # and truncation follows both
    logits[1, 5:] = 1.0
    rows = make_rows(300)
    rows.top_k[100:200] = 1
    rows.top_k[200:] = 3
    sample_and_advance(logits, rows, torch.arange(299, 99, -1), torch.arange(200) % 2, truncates=True)
    assert set(rows.ids[200::2].tolist()) == {5, 6, 7} and set(rows.ids[201::2].tolist()) == {0, 1, 2}
    assert set(rows.ids[100:200:2].tolist()) == {5} and set(rows.ids[101:200:2].tolist()) == {0}
    assert rows.ids[:100].tolist() == list(range(100, 200))


@pytest.mark.parametrize("index", [None, [2, 0, 1, 3]])
def test_a_row_ends_at_a_stop_or_when_nothing_is_left(index):
    rows = make_rows(4)
    rows.left[:] = torch.tensor([5, 5, 1, 0])
    rows.stops[1, STOPS - 1] = 42
    rows.stops[0, 0] = 43
    before = to(rows, "cpu")
    order = torch.arange(4) if index is None else torch.tensor(index)
    log_probs = torch.tensor([-0.5, -1.5, -2.5, -3.5])
    advance(rows, None if index is None else order, torch.tensor([42, 42, 42, 42])[order], log_probs[order])
    assert rows.ids.tolist() == [42, 42, 42, 103]
    assert rows.left.tolist() == [4, 0, 0, 0]
    assert (rows.positions - before.positions).tolist() == [1, 1, 1, 0]
    assert (rows.drawn - before.drawn).tolist() == [1, 1, 1, 0]
    assert rows.out.tolist() == [[42, 42, 42, -7], [-0.5, -1.5, -2.5, -7], [1, 2, 2, 0]]
    for name in ("seeds", "temperature", "top_k", "top_p", "min_p", "stops"):
        assert torch.equal(getattr(rows, name), getattr(before, name))


def launch(logits: torch.Tensor, rows: DecodeRows, index=None, source=None, truncates=False) -> DecodeRows:
    """Run the kernels on their device, hand the rows back to the CPU."""
    from burnish.ops.triton.sampling import sample_and_advance as run

    there = to(rows, KERNEL_DEVICE)
    index, source = (None if x is None else x.to(KERNEL_DEVICE) for x in (index, source))
    run(logits.to(KERNEL_DEVICE), there, index, source, truncates)
    return to(there, "cpu")


def same_step(logits, rows, index=None, source=None) -> None:
    """The kernels leave what the twin leaves, but for draws at a border, with the log-probs of float64.

    Those of the twin are no measure: the sum of a long float32 log_softmax is off by up to 2e-5 on the CPU.
    """
    twin = to(rows, "cpu")
    sampling.sample_and_advance_twin(logits, twin, index, source)
    kernel = launch(logits, rows, index, source)
    places = range(len(logits)) if index is None else index.tolist()
    lines = range(len(logits)) if source is None else source.tolist()
    u, different = noise(rows), []
    for row, line in zip(places, lines, strict=False):
        if rows.left[row] == 0:
            continue
        token, temperature = int(kernel.ids[row]), float(rows.temperature[row])
        exact = torch.log_softmax(logits[line].double() / (temperature or 1.0), dim=0)[token]
        assert abs(kernel.out[1, row] - exact) < 1e-5
        if token != twin.ids[row]:
            assert temperature > 0, "greedy rows have no borders"
            cumulative = torch.softmax(logits[line].double() / temperature, dim=0).cumsum(dim=0)
            low, high = sorted((token, int(twin.ids[row])))
            borders = cumulative[low:high] - u[row] * cumulative[-1]  # of the target, within rounding
            assert borders.abs().max() < 1e-5, row
            different.append(row)
    assert len(different) <= len(places) // 20
    same = [row for row in range(len(rows.ids)) if row not in different]
    for name in (field.name for field in fields(DecodeRows) if field.name != "out"):
        assert torch.equal(getattr(kernel, name)[same], getattr(twin, name)[same]), name
    assert torch.equal(kernel.out[0, same], twin.out[0, same])
    assert torch.equal(kernel.out[2, same], twin.out[2, same])
    untouched = [row for row in same if row not in places or rows.left[row] == 0]
    assert torch.equal(kernel.out[1, untouched], rows.out[1, untouched])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [17, 4096, 4097, 151936])
def test_kernels_agree_with_the_twin(vocabulary, dtype):
    rows = make_rows(64, [1.0, 0.0, 0.6, 1.0] * 16, seed=vocabulary)
    rows.left[::5] = 0
    rows.left[1::5] = 1
    logits = torch.randn(64, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 4
    logits[8:16, : vocabulary // 3] = -INF
    logits[16:24, vocabulary // 2 :] = -INF
    logits[24:28] += 100.0
    same_step(logits.to(dtype), rows)
    generator = torch.Generator().manual_seed(0)
    index, source = (torch.randperm(64, generator=generator)[:40] for _ in range(2))
    same_step(logits.to(dtype), rows, index=index)
    same_step(logits.to(dtype)[:40], rows, source=torch.arange(40).flip(0))
    same_step(logits.to(dtype), rows, index=index, source=source)


@pytest.mark.gpu
def test_kernels_read_rows_that_lie_apart_and_stop_ids():
    rows = make_rows(6, 0.0)
    wide = torch.randn(6, 6000, generator=torch.Generator().manual_seed(2))
    logits = wide[:, 16:5016]
    rows.stops[3, STOPS - 1], rows.stops[4, 0] = logits[3].argmax(), logits[4].argmax()
    same_step(logits, rows)
    kernel = launch(logits, rows)
    assert kernel.ids.tolist() == logits.argmax(dim=-1).tolist()
    assert kernel.out[2].tolist() == [1, 1, 1, 2, 2, 1]
    assert kernel.left.tolist() == [4, 4, 4, 0, 0, 4]
    logits = torch.zeros(3, 10_000)
    logits[0, [4095, 4096, 9000]] = logits[1, [4096, 9999]] = 2.5
    kernel = launch(logits.bfloat16(), make_rows(3, 0.0))
    assert kernel.ids.tolist() == [4095, 4096, 0], "the first of equals, across chunks"


@pytest.mark.gpu
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_kernels_give_token_0_and_nan_without_a_distribution(temperature):
    logits = torch.zeros(6, 9000)
    logits[0, 5000], logits[1, 8999], logits[2], logits[3], logits[4, :8192] = NAN, INF, -INF, NAN, NAN
    rows = make_rows(6, temperature)
    kernel = launch(logits, rows)
    assert kernel.out[1].isnan().tolist() == [True] * 5 + [False]
    assert kernel.ids[:5].tolist() == [0] * 5
    assert kernel.positions.tolist() == (rows.positions + 1).tolist()
    logits, rows = truncated_rows(3 * len(KINDS), 9000)
    logits[: len(KINDS), 8000], logits[len(KINDS) : 2 * len(KINDS), 10], logits[2 * len(KINDS) :] = NAN, INF, -INF
    kernel = launch(logits, rows, truncates=True)
    assert kernel.out[1].isnan().all() and not kernel.ids.any()


@pytest.mark.gpu
def test_kernels_never_draw_what_has_no_probability():
    logits = torch.full((256, 9000), -INF)
    possible = torch.tensor([3, 4095, 4100, 8191, 8999])
    logits[:, possible] = torch.tensor([0.0, -15.0, 1.0, -3.0, 0.5])
    rows = make_rows(256)
    rows.drawn[:] = 0
    kernel = launch(logits, rows)
    assert torch.isin(kernel.ids, possible).all()
    counts = torch.bincount(kernel.ids, minlength=9000)[possible]
    exact = torch.softmax(logits[0, possible].double(), dim=0) * 256
    assert ((counts - exact).abs() < 5 * exact.sqrt() + 1).all()
    logits[0, :4100] = -INF
    assert launch(logits[:2], least_noise(make_rows(2))).ids.tolist() == [4100, 3]


def near(logits: torch.Tensor, rows: DecodeRows, row: int, token: int) -> bool:
    """Whether rounding can have led the row to the token: of the noise, or of what truncation keeps."""
    reach = 1e-5
    for off in (0.0, -reach, reach):
        low, high = (expected(logits, rows, row, off, error) for error in (-reach, reach))
        if low <= token <= high:
            return True
    return False


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocabulary", [1, 17, 4097, 20_000, 151936])
def test_kernels_truncate_as_the_twin_does(vocabulary, dtype):
    count = len(KINDS) * 11 * (4 if KERNEL_DEVICE == "cuda" and vocabulary < 10_000 else 1)
    logits, rows = truncated_rows(count, vocabulary, seed=vocabulary)
    logits = (logits.clamp(-60_000, 60_000) if dtype == torch.float16 else logits).to(dtype)
    rows.left[::9] = 0
    rows.left[1::9] = 1
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    twin = to(rows, "cpu")
    sampling.sample_and_advance_twin(logits, twin, order, order, truncates=True)
    kernel = launch(logits, rows, order, order, truncates=True)
    different = (kernel.ids != twin.ids).nonzero()[:, 0].tolist()
    assert len(different) <= max(2, count // 50)
    for row in different:
        assert near(logits[row], rows, row, int(kernel.ids[row])), (row, KINDS[row % len(KINDS)])
    scale = rows.temperature.where(rows.temperature > 0, 1.0)
    active = rows.left > 0
    for row in active.nonzero()[:, 0].tolist():
        exact = torch.log_softmax(logits[row].double() / scale[row].double(), dim=0)[kernel.ids[row]]
        assert abs(kernel.out[1, row] - exact) < 1e-5 * max(1.0, abs(float(exact)))
    assert torch.equal(kernel.out[2], twin.out[2]) and torch.equal(kernel.left, twin.left)
    assert torch.equal(kernel.out[:2, ~active], rows.out[:2, ~active])
    assert torch.equal(kernel.positions, twin.positions) and torch.equal(kernel.drawn, twin.drawn)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_keep_exactly_the_first_ties_across_chunks(dtype):
    logits = torch.full((192, 9000), -2.0, dtype=dtype)
    tied = [10, 4000, 4095, 4096, 4100, 8191, 8192, 8999]
    logits[:, tied] = -1.0
    logits[:, 5000] = 0.0
    rows = make_rows(192, 5.0)
    rows.top_k[:64], rows.top_k[64:] = 5, 1001
    kernel = launch(logits, rows, truncates=True)
    assert set(kernel.ids[:64].tolist()) == {5000, *tied[:4]}
    rest = [token for token in range(9000) if token not in (5000, *tied)]
    drawn = set(kernel.ids[64:].tolist())
    assert drawn <= {5000, *tied, *rest[: 1001 - 9]} and drawn & {*rest[900:]}
    logits, rows = truncated_rows(64, 5000)
    together, row = launch(logits, rows, truncates=True), torch.tensor([45])
    alone = launch(logits, rows, row, row, truncates=True)  # a row is truncated alike wherever it lies
    assert alone.ids[45] == together.ids[45] and alone.out[1, 45] == together.out[1, 45]


@pytest.mark.gpu
def test_kernels_draw_from_what_stays_as_often_as_its_probabilities_say():
    draws = 20_000 if KERNEL_DEVICE == "cuda" else 300
    line = torch.tensor([0.3, -INF, 1.2, -2.0, 0.0, 0.9, -INF, 0.3, 0.3, -1.0]).bfloat16()
    rows = make_rows(draws, 1.5)
    rows.top_k[:], rows.top_p[:] = 5, 0.9  # of the three at 0.3 two, of which top-p leaves both
    kernel = launch(line.expand(draws, -1).contiguous(), rows, truncates=True)
    stays = torch.tensor([0, 2, 5, 7, 8])
    exact = torch.softmax(line[stays].double() / 1.5, dim=0) * draws
    counts = torch.bincount(kernel.ids, minlength=10).double()
    assert counts.sum() == counts[stays].sum()
    assert ((counts[stays] - exact) ** 2 / exact).sum() < 23.5  # four degrees of freedom: p of one in ten thousand


@pytest.mark.gpu
@pytest.mark.skipif(KERNEL_DEVICE == "cpu", reason="graphs need a GPU")
@pytest.mark.parametrize("truncates", [False, True])
def test_kernels_run_in_a_graph(truncates):
    logits = torch.randn(32, 5000, generator=torch.Generator().manual_seed(3))
    rows = make_rows(32, left=3)
    rows.top_k[:], rows.top_p[::2] = 40, 0.9
    twin, there, on_device = to(rows, "cpu"), to(rows, "cuda"), logits.cuda()
    sample_and_advance(on_device, to(rows, "cuda"), truncates=truncates)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sample_and_advance(on_device, there, truncates=truncates)
    for status in (1, 1, 2, 0):
        graph.replay()
        sample_and_advance(logits, twin, truncates=truncates)
        back = to(there, "cpu")
        assert back.out[2].tolist() == [status] * 32
        assert back.ids.tolist() == twin.ids.tolist()
        torch.testing.assert_close(back.out, twin.out, rtol=0, atol=1e-5)
