"""`ops.sampling.sample_and_advance` on a GPU: two kernels that read the logits once, and one chunk of each row again.

The first reduces every chunk of a row to its maximum and its sum of exponentials. The second, one program per row,
combines the chunks, picks the chunk in which the draw falls and the token in it, and moves the row's state on.
Cumulative sums are float64. Every sum has a fixed order, so equal logits give equal tokens whatever else is in the
batch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from burnish.ops.sampling import STOPS, Rows

CHUNK = 4096  # logits per program: enough loads in flight, and few enough chunks for one program to combine


def sample_and_advance(logits: Tensor, rows: Rows, index: Tensor | None, source: Tensor | None) -> None:
    """As `ops.sampling.sample_and_advance`. Launches only: it can be captured in a graph."""
    count = len(index) if index is not None else len(logits) if source is None else len(source)
    if count == 0:
        return
    vocabulary = logits.shape[-1]
    chunk = max(32, min(CHUNK, triton.next_power_of_2(vocabulary)))
    chunks = triton.cdiv(vocabulary, chunk)
    # Two tensors, not halves of one: where the second begins must not depend on the batch, or its alignment would.
    maxima = torch.empty((count, chunks), dtype=torch.float32, device=logits.device)
    sums = torch.empty_like(maxima)
    _reduce_chunks[(count * chunks,)](
        logits,
        logits.stride(0),
        index,
        source,
        rows.left,
        rows.temperature,
        maxima,
        sums,
        V=vocabulary,
        CHUNK=chunk,
        CHUNKS=chunks,
        num_warps=4,
    )
    _draw_and_advance[(count,)](
        logits,
        logits.stride(0),
        index,
        source,
        maxima,
        sums,
        rows.ids,
        rows.positions,
        rows.left,
        rows.drawn,
        rows.seeds,
        rows.temperature,
        rows.stops,
        rows.out,
        rows.out.stride(0),
        V=vocabulary,
        CHUNK=chunk,
        CHUNKS=chunks,
        CHUNKS_PADDED=max(32, triton.next_power_of_2(chunks)),
        STOPS=STOPS,
        num_warps=8,
    )


@triton.jit(do_not_specialize_on_alignment=["index", "source"])
def _reduce_chunks(
    logits,  # (n', V)
    stride,
    index,  # (n,) or None
    source,  # (n,) or None
    left,  # (C,)
    temperature,  # (C,)
    maxima,  # (n, CHUNKS)
    sums,  # (n, CHUNKS)
    V: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """The greatest logit m of each chunk, and the sum of exp((logit - m) / temperature)."""
    program = tl.program_id(0)
    i = program // CHUNKS
    chunk = program % CHUNKS
    row = _entry(index, i)
    if tl.load(left + row) > 0:
        line = logits + _entry(source, i) * stride
        values, _ = _load_chunk(line, chunk, V, CHUNK)
        greatest = tl.max(values, axis=0)
        # A chunk of nothing but -inf sums to 0. A NaN or +inf makes the sum NaN, whatever the maximum is.
        base = tl.where(greatest == float("-inf"), 0.0, greatest)
        powers = tl.exp2((values - base) * _base2_scale(tl.load(temperature + row)))
        tl.store(maxima + program, greatest)
        tl.store(sums + program, tl.sum(powers, axis=0))


@triton.jit(do_not_specialize_on_alignment=["index", "source"])
def _draw_and_advance(
    logits,  # (n', V)
    stride,
    index,  # (n,) or None
    source,  # (n,) or None
    maxima,  # (n, CHUNKS)
    sums,  # (n, CHUNKS)
    ids,
    positions,
    left,
    drawn,
    seeds,
    temperature,
    stops,  # (C, STOPS)
    out,  # (3, C)
    out_stride,
    V: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNKS_PADDED: tl.constexpr,
    STOPS: tl.constexpr,
):
    i = tl.program_id(0)
    row = _entry(index, i)
    remaining = tl.load(left + row)
    if remaining <= 0:
        tl.store(out + 2 * out_stride + row, 0.0)
    else:
        place = tl.load(drawn + row)
        heat = tl.load(temperature + row)
        scale = _base2_scale(heat)

        chunks = tl.arange(0, CHUNKS_PADDED)
        chunk_at = i.to(tl.int64) * CHUNKS + chunks
        greatest = tl.load(maxima + chunk_at, mask=chunks < CHUNKS, other=float("-inf"))
        parts = tl.load(sums + chunk_at, mask=chunks < CHUNKS, other=0.0)
        top = tl.max(greatest, axis=0)
        base = tl.where(top == float("-inf"), 0.0, top)
        weights = (parts * tl.exp2((greatest - base) * scale)).to(tl.float64)  # (CHUNKS_PADDED,)
        total = tl.sum(weights, axis=0)
        sound = (total > 0.0) & (total < float("inf"))  # false for NaN

        line = logits + _entry(source, i) * stride
        if heat == 0.0:
            chunk = tl.min(tl.where(greatest == top, chunks, CHUNKS_PADDED), axis=0)
            values, tokens = _load_chunk(line, tl.where(sound, chunk, 0), V, CHUNK)
            token = tl.min(tl.where(values == top, tokens, V), axis=0)
        else:
            target = _uniform(tl.load(seeds + row), place) * total
            chunk = _first_over(tl.cumsum(weights, axis=0), target, weights, chunks, CHUNKS_PADDED)
            # How far into the chunk the target lies, as a share: the chunk is summed again below, in another order.
            before = tl.sum(tl.where(chunks < chunk, weights, 0.0), axis=0)
            weight = tl.sum(tl.where(chunks == chunk, weights, 0.0), axis=0)
            peak = tl.sum(tl.where(chunks == chunk, greatest, 0.0), axis=0)
            values, tokens = _load_chunk(line, chunk, V, CHUNK)
            powers = tl.exp2((values - peak) * scale).to(tl.float64)  # (CHUNK,)
            inside = (target - before) / weight * tl.sum(powers, axis=0)
            token = _first_over(tl.cumsum(powers, axis=0), inside, powers, tokens, V)

        token = tl.where(sound, token, 0)
        value = tl.sum(tl.where(tokens == token, values, 0.0), axis=0)
        # Differences of logits are divided, not logits: nothing is lost where logits are large.
        log_prob = (value - top) / tl.where(heat == 0.0, 1.0, heat) - tl.log(total.to(tl.float32))
        log_prob = tl.where(sound, log_prob, float("nan"))

        met = tl.load(stops + row * STOPS + tl.arange(0, STOPS)) == token
        ended = (tl.max(met.to(tl.int32), axis=0) > 0) | (remaining == 1)
        tl.store(ids + row, token.to(tl.int64))
        tl.store(positions + row, tl.load(positions + row) + 1)
        tl.store(drawn + row, place + 1)
        tl.store(left + row, tl.where(ended, 0, remaining - 1))
        tl.store(out + row, token.to(tl.float32))
        tl.store(out + out_stride + row, log_prob)
        tl.store(out + 2 * out_stride + row, tl.where(ended, 2.0, 1.0))


@triton.jit
def _entry(entries, i):
    """`entries[i]`; without entries it is i itself."""
    if entries is None:
        return i.to(tl.int64)
    else:
        return tl.load(entries + i).to(tl.int64)


@triton.jit
def _load_chunk(line, chunk, V: tl.constexpr, CHUNK: tl.constexpr):
    """The logits of a chunk in float32, -inf past the vocabulary, and their token ids."""
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    return tl.load(line + tokens, mask=tokens < V, other=float("-inf")).to(tl.float32), tokens


@triton.jit
def _base2_scale(temperature):
    """What a difference of logits is multiplied with to be an exponent of 2; a greedy row is not scaled."""
    return 1.4426950408889634 / tl.where(temperature == 0.0, 1.0, temperature)


@triton.jit
def _first_over(cumulative, target, weights, places, none: tl.constexpr):
    """The first place with weight whose cumulative weight exceeds the target; else the last place with weight.

    The second case, and places without weight that seem to pass the target, come only from rounding. Where there is no
    weight at all (NaN) it is 0 or the first place, which can be read.
    """
    heavy = weights > 0.0
    first = tl.min(tl.where((cumulative > target) & heavy, places, none), axis=0)
    last = tl.max(tl.where(heavy, places, 0), axis=0)
    return tl.minimum(first, last)


@triton.jit
def _uniform(seed, position):
    """`ops.sampling.uniforms` of one row, bit for bit."""
    mixed = _mix64(position.to(tl.uint64, bitcast=True))
    bits = _mix64(seed.to(tl.uint64, bitcast=True) + mixed)
    return (bits >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16  # 2**-53


@triton.jit
def _mix64(value):
    value = value + 0x9E3779B97F4A7C15
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)
