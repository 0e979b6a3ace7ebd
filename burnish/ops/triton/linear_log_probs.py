"""`ops.linear_log_probs` on a GPU: the logits of a chunk reduced to values, and their gradient.

The logits are read once for each. Forward, every program reduces a piece of a row; a second kernel, one program for a
row, combines the pieces. Every sum has a fixed order. Backward, a program turns a piece of a row into its gradient.

Sums of exponentials are relative to the largest logit m of the piece: with d = z - m they are s = Σ exp(d),
w = Σ d exp(d) and q = Σ exp(2d). Those of the row, S, W and Q, relative to its largest logit M, give

    log_prob = (z[target] - M) - log S     entropy = log S - W / S     sum_pi_squared = Q / S²     log_sum = M + log S
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PIECE = 4096  # logits per program: enough loads in flight, and few enough pieces for one program to combine


def summarise(logits: Tensor, targets: Tensor, factor: float, cap: float | None, values: dict[str, Tensor]) -> None:
    """Fill the (n,) tensors of `values` by their names from raw `logits` (n, V)."""
    count, vocabulary = logits.shape
    if count == 0:
        return
    piece, pieces = _pieces(vocabulary)
    entropy, sum_pi_squared = values.get("entropy"), values.get("sum_pi_squared")
    # Separate tensors, not parts of one: where a part begins, and so its alignment, would depend on the count.
    maxima = torch.empty((count, pieces), dtype=torch.float32, device=logits.device)
    sums = torch.empty_like(maxima)
    weighted = None if entropy is None else torch.empty_like(maxima)
    squares = None if sum_pi_squared is None else torch.empty_like(maxima)
    partial = (maxima, sums, weighted, squares)
    _reduce_pieces[(count * pieces,)](
        logits, factor, cap, *partial, V=vocabulary, PIECE=piece, PIECES=pieces, num_warps=8
    )
    given, padded = (logits, targets, factor, cap, *partial), max(32, triton.next_power_of_2(pieces))
    results = values.get("log_prob"), entropy, sum_pi_squared, values.get("log_sum")
    _combine[(count,)](*given, *results, V=vocabulary, PIECES=pieces, PADDED=padded, num_warps=1)


def differentiate(
    logits: Tensor,
    targets: Tensor,
    factor: float,
    cap: float | None,
    grads: dict[str, Tensor],
    values: dict[str, Tensor],
    dtype: torch.dtype,
) -> Tensor:
    """Gradient (n, V) in `dtype` of raw `logits`, in their place where the dtype is theirs."""
    count, vocabulary = logits.shape
    out = logits if dtype == logits.dtype else torch.empty_like(logits, dtype=dtype)
    if count == 0:
        return out
    piece, pieces = _pieces(vocabulary)
    own = values["log_sum"], values.get("entropy"), values.get("sum_pi_squared")
    upstream = grads.get("log_prob"), grads.get("entropy"), grads.get("sum_pi_squared")
    _differentiate[(count * pieces,)](
        logits, targets, factor, cap, *own, *upstream, out, V=vocabulary, PIECE=piece, PIECES=pieces, num_warps=8
    )
    return out


def _pieces(vocabulary: int) -> tuple[int, int]:
    """Logits per piece of a row, and pieces per row."""
    piece = max(32, min(PIECE, triton.next_power_of_2(vocabulary)))
    return piece, triton.cdiv(vocabulary, piece)


@triton.jit
def _shaped(raw, factor, cap):
    """From raw logits to z. tanh from exp: runs into 1 and -1 at both ends without NaN."""
    z = raw * factor
    if cap is not None:
        z = cap * (1.0 - 2.0 / (tl.exp(z * (2.0 / cap)) + 1.0))
    return z


@triton.jit
def _reduce_pieces(
    logits,  # (n, V)
    factor,
    cap,  # or None
    maxima,  # (n, PIECES)
    sums,  # (n, PIECES)
    weighted,  # (n, PIECES) or None
    squares,  # (n, PIECES) or None
    V: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
):
    program = tl.program_id(0)
    row = (program // PIECES).to(tl.int64)
    columns = (program % PIECES) * PIECE + tl.arange(0, PIECE)
    inside = columns < V
    raw = tl.load(logits + row * V + columns, mask=inside, other=0.0)
    z = tl.where(inside, _shaped(raw, factor, cap), float("-inf"))
    peak = tl.max(z, axis=0)
    below = z - peak
    power = tl.exp(below)
    tl.store(maxima + program, peak)
    tl.store(sums + program, tl.sum(power, axis=0))
    if weighted is not None:
        tl.store(weighted + program, tl.sum(tl.where(inside, below * power, 0.0), axis=0))
    if squares is not None:
        tl.store(squares + program, tl.sum(power * power, axis=0))


@triton.jit(do_not_specialize_on_alignment=["targets", "log_prob", "entropy", "sum_pi_squared", "log_sum"])
def _combine(
    logits,  # (n, V)
    targets,  # (n,)
    factor,
    cap,  # or None
    maxima,  # (n, PIECES), as the rest from `_reduce_pieces`
    sums,
    weighted,
    squares,
    log_prob,  # (n,) or None, as the rest
    entropy,
    sum_pi_squared,
    log_sum,
    V: tl.constexpr,
    PIECES: tl.constexpr,
    PADDED: tl.constexpr,
):
    row = tl.program_id(0)
    pieces = tl.arange(0, PADDED)
    inside = pieces < PIECES
    at = row * PIECES + pieces
    maximum = tl.load(maxima + at, mask=inside, other=float("-inf"))
    peak = tl.max(maximum, axis=0)
    below = maximum - peak
    share = tl.exp(below)
    own = tl.load(sums + at, mask=inside, other=0.0)
    total = tl.sum(share * own, axis=0)
    if log_sum is not None:
        tl.store(log_sum + row, peak + tl.log(total))
    if log_prob is not None:
        target = tl.load(targets + row)
        z = _shaped(tl.load(logits + row.to(tl.int64) * V + target), factor, cap)
        tl.store(log_prob + row, z - peak - tl.log(total))
    if entropy is not None:
        distance = tl.load(weighted + at, mask=inside, other=0.0) + tl.where(inside, below * own, 0.0)
        tl.store(entropy + row, tl.log(total) - tl.sum(share * distance, axis=0) / total)
    if sum_pi_squared is not None:
        square = tl.load(squares + at, mask=inside, other=0.0)
        tl.store(sum_pi_squared + row, tl.sum(share * share * square, axis=0) / (total * total))


UPSTREAM = ["of_log_prob", "of_entropy", "of_sum_pi_squared"]


@triton.jit(do_not_specialize_on_alignment=["targets", "log_sum", "entropy", "sum_pi_squared", *UPSTREAM])
def _differentiate(
    logits,  # (n, V)
    targets,  # (n,)
    factor,
    cap,  # or None
    log_sum,  # (n,)
    entropy,  # (n,) where of_entropy is
    sum_pi_squared,  # (n,) where of_sum_pi_squared is
    of_log_prob,  # (n,) or None: upstream gradients, as the rest
    of_entropy,
    of_sum_pi_squared,
    out,  # (n, V), may be `logits`
    V: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
):
    program = tl.program_id(0)
    row = (program // PIECES).to(tl.int64)
    columns = (program % PIECES) * PIECE + tl.arange(0, PIECE)
    inside = columns < V
    z = _shaped(tl.load(logits + row * V + columns, mask=inside, other=0.0), factor, cap)
    log_p = z - tl.load(log_sum + row)
    p = tl.exp(log_p)
    dz = tl.zeros((PIECE,), dtype=tl.float32)
    if of_log_prob is not None:
        grad = tl.load(of_log_prob + row)
        target = tl.load(targets + row)
        dz += grad * (tl.where(columns == target, 1.0, 0.0) - p)
    if of_entropy is not None:
        grad = tl.load(of_entropy + row)
        dz -= grad * p * (log_p + tl.load(entropy + row))
    if of_sum_pi_squared is not None:
        grad = tl.load(of_sum_pi_squared + row)
        dz += 2.0 * grad * p * (p - tl.load(sum_pi_squared + row))
    slope = factor
    if cap is not None:
        bend = z * (1.0 / cap)
        slope = factor * (1.0 - bend * bend)
    tl.store(out + row * V + columns, (dz * slope).to(out.dtype.element_ty), mask=inside)
