"""`ops.sampling.sample_and_advance` on a GPU: two kernels that read the logits once, and one chunk of each row again.

The first reduces every chunk of a row to its maximum and its sum of exponentials. The second, one program per row,
combines the chunks, picks the chunk in which the draw falls and the token in it, and moves the row's state on.
Cumulative sums are float64. Every sum has a fixed order, so equal logits give equal tokens whatever else is in the
batch.

Where rows truncate, a third kernel runs between the two and says for each row what stays: all logits above a threshold
and the first few (by token id) that are equal to it. Nothing is sorted: the threshold is searched among the numbers
that a logit can be, and each try is a sum over the row. bfloat16 logits need about nine tries, and float32 logits 24.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from burnish.ops.sampling import STOPS, DecodeRows

CHUNK = 4096  # logits per program: enough loads in flight, and few enough chunks for one program to combine
SEARCHED = 8192  # logits that a search for a threshold takes at once
ZERO_BITS = {torch.bfloat16: 16, torch.float16: 13}  # at the end of such a number as a float32


def sample_and_advance(
    logits: Tensor, rows: DecodeRows, index: Tensor | None, source: Tensor | None, truncates: bool = False
) -> None:
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
    lines = logits, logits.stride(0), index, source
    sizes = {"V": vocabulary, "CHUNK": chunk, "CHUNKS": chunks}
    _reduce_chunks[(count * chunks,)](*lines, rows.left, rows.temperature, maxima, sums, **sizes, num_warps=4)
    sizes["CHUNKS_PADDED"] = max(32, triton.next_power_of_2(chunks))
    thresholds = at_threshold = kept = ties = None
    if truncates:
        thresholds = torch.empty(count, dtype=torch.float32, device=logits.device)
        at_threshold = torch.empty(count, dtype=torch.int32, device=logits.device)
        kept, ties = torch.empty_like(maxima), torch.empty_like(maxima, dtype=torch.int32)
        asked = rows.left, rows.temperature, rows.top_k, rows.top_p, rows.min_p
        searched = max(32, min(SEARCHED, triton.next_power_of_2(vocabulary)))
        bits = ZERO_BITS.get(logits.dtype, 0)
        results = maxima, thresholds, at_threshold, kept, ties
        _truncate[(count,)](*lines, *asked, *results, **sizes, SEARCHED=searched, ZERO_BITS=bits, num_warps=16)
    found = maxima, sums, thresholds, at_threshold, kept, ties
    state = rows.ids, rows.positions, rows.left, rows.drawn, rows.seeds, rows.temperature, rows.stops, rows.out
    _draw_and_advance[(count,)](
        *lines, *found, *state, rows.out.stride(0), **sizes, STOPS=STOPS, TRUNCATES=truncates, num_warps=8
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
def _truncate(
    logits,  # (n', V)
    stride,
    index,  # (n,) or None
    source,  # (n,) or None
    left,  # (C,)
    temperature,  # (C,)
    top_k,  # (C,)
    top_p,  # (C,)
    min_p,  # (C,)
    maxima,  # (n, CHUNKS)
    thresholds,  # (n,)
    at_threshold,  # (n,)
    kept,  # (n, CHUNKS)
    ties,  # (n, CHUNKS)
    V: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNKS_PADDED: tl.constexpr,
    SEARCHED: tl.constexpr,
    ZERO_BITS: tl.constexpr,
):
    """What stays of a row: the logits above its threshold, and the first `at_threshold` that are equal to it.

    Of each chunk `kept` is the sum that `_reduce_chunks` has for the whole of it, and `ties` counts the logits before
    it that are equal to the threshold. A row that keeps everything has the threshold -inf and nothing else.
    """
    i = tl.program_id(0)
    row = _entry(index, i)
    heat = tl.load(temperature + row)
    most = tl.load(top_k + row)
    share = tl.load(top_p + row)
    least = tl.load(min_p + row)
    threshold = tl.full((), float("-inf"), tl.float32)
    count = tl.full((), 0, tl.int32)
    if (tl.load(left + row) > 0) & (heat > 0.0) & ((most > 0) | (share < 1.0) | (least > 0.0)):
        line = logits + _entry(source, i) * stride
        chunks = tl.arange(0, CHUNKS_PADDED)
        first = i.to(tl.int64) * CHUNKS
        peak = tl.max(tl.load(maxima + first + chunks, mask=chunks < CHUNKS, other=float("-inf")), axis=0)
        scale = _base2_scale(heat)
        if (most > 0) & (most < V):
            limit = most.to(tl.float64)
            threshold, above = _search(line, threshold, limit, peak, scale, V, SEARCHED, ZERO_BITS, False)
            count = (limit - above).to(tl.int32)
        if share < 1.0:
            weight = tl.exp2((threshold - peak) * scale).to(tl.float64)
            total = _sum_above(line, threshold, peak, scale, V, SEARCHED, True) + count * weight
            limit = share.to(tl.float64) * total
            lower, above = _search(line, threshold, limit, peak, scale, V, SEARCHED, ZERO_BITS, True)
            weight = tl.exp2((lower - peak) * scale).to(tl.float64)
            fitting = tl.minimum(tl.ceil((limit - above) / weight), V).to(tl.int32)
            fitting = tl.maximum(fitting, (above == 0.0).to(tl.int32))  # the likeliest token always stays
            count = tl.where(lower == threshold, tl.minimum(count, fitting), fitting)
            threshold = lower
        floor = peak + tl.log2(least) / scale  # -inf where min-p is off
        if floor > threshold:
            threshold = floor
            count = V
        if threshold > float("-inf"):
            before = 0
            for chunk in range(CHUNKS):
                values, _ = _load_chunk(line, chunk, V, CHUNK)
                top = tl.load(maxima + first + chunk)
                base = tl.where(top == float("-inf"), 0.0, top)
                powers = tl.where(values > threshold, tl.exp2((values - base) * scale), 0.0)
                equal = tl.sum((values == threshold).to(tl.int32), axis=0)
                staying = tl.minimum(equal, tl.maximum(count - before, 0))
                # Without ties their weight may be too large for a float32: the chunk may lie far below.
                weight = tl.where(staying > 0, tl.exp2((threshold - base) * scale), 0.0)
                tl.store(kept + first + chunk, tl.sum(powers, axis=0) + staying * weight)
                tl.store(ties + first + chunk, before)
                before += equal
    tl.store(thresholds + i, threshold)
    tl.store(at_threshold + i, count)


@triton.jit
def _search(
    line, lowest, limit, peak, scale, V: tl.constexpr, BLOCK: tl.constexpr, ZERO_BITS: tl.constexpr, MASS: tl.constexpr
):
    """The least number, from `lowest` to the greatest logit, above which there is at most `limit`; and how much it is.

    It halves what is left between the two, in the order of `_place`. The first tries are nearer to the greatest logit,
    since a threshold mostly is: one octave away, then eight.
    """
    low = _place(lowest, ZERO_BITS)
    high = _place(peak, ZERO_BITS)
    reach = tl.full((), 1 << (23 - ZERO_BITS), tl.int64)
    above_high = limit * 0.0
    while low < high:
        middle = tl.maximum(low + (high - low) // 2, high - reach)
        above = _sum_above(line, _number(middle, ZERO_BITS), peak, scale, V, BLOCK, MASS)
        if above <= limit:
            high = middle
            above_high = above
            reach = tl.minimum(reach * 8, 1 << 33)  # all there is; it must not run over, and be 0
            low = tl.where(above == limit, middle, low)  # it cannot be more: the search is over
        else:  # or NaN
            low = middle + 1
    return _number(high, ZERO_BITS), above_high


@triton.jit
def _sum_above(line, threshold, peak, scale, V: tl.constexpr, BLOCK: tl.constexpr, MASS: tl.constexpr):
    """How many logits of the row are above the threshold; or their mass, where that of the peak is 1. float64"""
    sums = tl.zeros((BLOCK,), tl.float32)
    for block in range((V + BLOCK - 1) // BLOCK):
        values, _ = _load_chunk(line, block, V, BLOCK)
        if MASS:
            sums += tl.where(values > threshold, tl.exp2((values - peak) * scale), 0.0)
        else:
            sums += tl.where(values > threshold, 1.0, 0.0)
    return tl.sum(sums.to(tl.float64), axis=0)


@triton.jit
def _place(number, ZERO_BITS: tl.constexpr):
    """The place of a number among all that end in so many zero bits, as float32. Integers in the order of numbers."""
    bits = tl.where(number == 0.0, 0.0, number).to(tl.int32, bitcast=True)  # no -0.0
    return ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> ZERO_BITS).to(tl.int64)


@triton.jit
def _number(place, ZERO_BITS: tl.constexpr):
    ordered = (place << ZERO_BITS).to(tl.int32)
    bits = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)) & -(1 << ZERO_BITS)
    return bits.to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize_on_alignment=["index", "source"])
def _draw_and_advance(
    logits,  # (n', V)
    stride,
    index,  # (n,) or None
    source,  # (n,) or None
    maxima,  # (n, CHUNKS)
    sums,  # (n, CHUNKS)
    thresholds,  # these four as `_truncate` leaves them, or None
    at_threshold,
    kept,
    ties,
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
    TRUNCATES: tl.constexpr,
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
        shares = tl.exp2((greatest - base) * scale)
        weights = (parts * shares).to(tl.float64)  # (CHUNKS_PADDED,)
        total = tl.sum(weights, axis=0)
        sound = (total > 0.0) & (total < float("inf"))  # false for NaN

        line = logits + _entry(source, i) * stride
        if heat == 0.0:
            chunk = tl.min(tl.where(greatest == top, chunks, CHUNKS_PADDED), axis=0)
            values, tokens = _load_chunk(line, tl.where(sound, chunk, 0), V, CHUNK)
            token = tl.min(tl.where(values == top, tokens, V), axis=0)
        else:
            remains = total
            if TRUNCATES:
                threshold = tl.load(thresholds + i)
                if threshold > float("-inf"):
                    parts = tl.load(kept + chunk_at, mask=chunks < CHUNKS, other=0.0)
                    weights = (parts * shares).to(tl.float64)
                    remains = tl.sum(weights, axis=0)
            target = _uniform(tl.load(seeds + row), place) * remains
            chunk = _first_over(tl.cumsum(weights, axis=0), target, weights, chunks, CHUNKS_PADDED)
            # How far into the chunk the target lies, as a share: the chunk is summed again below, in another order.
            before = tl.sum(tl.where(chunks < chunk, weights, 0.0), axis=0)
            weight = tl.sum(tl.where(chunks == chunk, weights, 0.0), axis=0)
            peak = tl.sum(tl.where(chunks == chunk, greatest, 0.0), axis=0)
            values, tokens = _load_chunk(line, chunk, V, CHUNK)
            powers = tl.exp2((values - peak) * scale).to(tl.float64)  # (CHUNK,)
            if TRUNCATES:
                # Where the threshold is -inf, `ties` is not written; what equals it has no weight anyway.
                equal = (values == threshold).to(tl.int32)
                rank = tl.load(ties + i.to(tl.int64) * CHUNKS + chunk) + tl.cumsum(equal, axis=0)
                staying = rank <= tl.load(at_threshold + i)
                powers = tl.where((values > threshold) | ((equal > 0) & staying), powers, 0.0)
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
