"""One step of sampling for rows whose decode state is on the device: steps follow each other without the host.

A draw is the inverse of the cumulative distribution in token-id order, so it needs one number per token and does not
depend on the other rows. Before it, a row may be cut: temperature, top-k, top-p of what top-k left, min-p.

On a GPU `sample_and_advance` is Triton kernels; elsewhere it is the torch twin below. The two sum in another order, so
they may differ where the noise falls within a rounding error of the border between two tokens, or the mass before a
token within one of top-p.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

STOPS = 8  # token ids that may end a row on the device
IDLE, GOES_ON, ENDED = 0, 1, 2  # status of a row in `DecodeRows.out`
ELEMENTS_AT_ONCE = 1 << 22  # rows × vocabulary the twin works on together; bounds its float64 copies


@dataclass(frozen=True)
class DecodeRows:
    """Decode state, one entry per row, all on one device. Tensors are contiguous and changed in place."""

    ids: Tensor  # (C,) int64: the token to feed next
    positions: Tensor  # (C,) int64: its position
    left: Tensor  # (C,) int32: tokens the row may still sample; 0: it is idle
    drawn: Tensor  # (C,) int64: place in the completion of the next token to sample, which is the place of its noise
    seeds: Tensor  # (C,) int64: bit pattern of the request's unsigned 64-bit seed
    temperature: Tensor  # (C,) float32; 0: greedy
    top_k: Tensor  # (C,) int32; 0: off
    top_p: Tensor  # (C,) float32; 1: off
    min_p: Tensor  # (C,) float32; 0: off
    stops: Tensor  # (C, STOPS) int64: token ids that end the row; -1: none
    out: Tensor  # (3, C) float32: token id, log-prob, status (IDLE, GOES_ON, ENDED) of the newest step


def uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """One float64 in [0, 1) for each seed (n,) int64 and position (n,) int64: bit for bit `rollout.base.uniforms`,
    since sums and products of int64 wrap around to the same bits as unsigned ones."""
    bits = _mix64(seeds + _mix64(positions))
    return _shift(bits, 11).double() * 2.0**-53


def _mix64(value: Tensor) -> Tensor:
    value = value + _signed(0x9E3779B97F4A7C15)
    value = (value ^ _shift(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shift(value, 27)) * _signed(0x94D049BB133111EB)
    return value ^ _shift(value, 31)


def _shift(value: Tensor, by: int) -> Tensor:
    """Shift right and fill with zeros; the shift of a signed tensor fills with the sign."""
    return (value >> by) & ((1 << (64 - by)) - 1)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


def advance(rows: DecodeRows, index: Tensor | None, tokens: Tensor, log_probs: Tensor) -> None:
    """Take sampled `tokens` (n,) and their `log_probs` (n,) for the rows `index` (n,); None: rows 0 to n-1. A row ends
    at one of its stops or when it may sample no more. Idle rows get their status and keep all else."""
    at = slice(len(tokens)) if index is None else index
    left = rows.left[at]  # (n,)
    active = left > 0
    ended = active & ((rows.stops[at] == tokens[:, None]).any(dim=1) | (left == 1))
    newest = torch.stack([tokens.float(), log_probs.float()])  # (2, n); token ids below 2**24 are exact
    rows.ids[at] = torch.where(active, tokens, rows.ids[at])
    rows.positions[at] += active
    rows.drawn[at] += active
    rows.left[at] = torch.where(active & ~ended, left - 1, 0)
    rows.out[:2, at] = torch.where(active, newest, rows.out[:2, at])
    rows.out[2, at] = active.float() + ended.float()


def sample_and_advance(
    logits: Tensor, rows: DecodeRows, index: Tensor | None = None, source: Tensor | None = None, truncates: bool = False
) -> None:
    """Row `index[i]` (None: i) draws from `logits[source[i]]` (None: i), then moves on as `advance` says.

    `logits` is (n, V) in any float type, each row contiguous; `index` and `source` are (n,) int64 and distinct but for
    idle rows. The rows' top_k, top_p and min_p are looked at where `truncates` says that one of them asks for it. What
    is drawn is said at `draw`.
    """
    if logits.is_cuda:
        from burnish.ops.triton.sampling import sample_and_advance as launch

        launch(logits, rows, index, source, truncates)
    else:
        sample_and_advance_twin(logits, rows, index, source, truncates)


def sample_and_advance_twin(
    logits: Tensor, rows: DecodeRows, index: Tensor | None = None, source: Tensor | None = None, truncates: bool = False
) -> None:
    count = len(index) if index is not None else len(logits) if source is None else len(source)
    at = slice(count) if index is None else index
    truncation = (rows.top_k[at], rows.top_p[at], rows.min_p[at]) if truncates else None
    lines = logits[:count] if source is None else logits[source]
    advance(rows, index, *draw(lines, rows.temperature[at], uniforms(rows.seeds[at], rows.drawn[at]), truncation))


def draw(
    logits: Tensor, temperature: Tensor, noise: Tensor, truncation: tuple[Tensor, Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Logits (n, V), temperature (n,), noise (n,) in [0, 1) → token ids (n,) int64, log-probs (n,) float32.

    The log-prob is log_softmax(logits / temperature); at temperature 0 of the unscaled logits, and the token is the
    first of the greatest. Else it is the first whose cumulative probability exceeds noise × total. `truncation`, top_k,
    top_p and min_p (n,) each, leaves fewer tokens to draw from, and the log-prob as it is. Logits that give no
    distribution (a NaN, +inf, nothing but -inf) give token 0 with log-prob NaN, which the host reports.

    torch promises no deterministic cumulative sum of floating numbers on a GPU. Where deterministic algorithms are
    asked for, the sums therefore run on the CPU: slower, and the same tokens as there for the same log-probs.
    """
    columns = (temperature, noise, *(truncation or ()))
    step = max(1, ELEMENTS_AT_ONCE // logits.shape[-1])
    parts = [
        _draw(*(column[i : i + step] for column in (logits, *columns))) for i in range(0, max(len(logits), 1), step)
    ]
    tokens, log_probs = (torch.cat(part) for part in zip(*parts, strict=True))
    return tokens, log_probs


def _draw(logits: Tensor, temperature: Tensor, noise: Tensor, *truncation: Tensor) -> tuple[Tensor, Tensor]:
    greedy = temperature == 0
    scale = torch.where(greedy, 1.0, temperature)
    log_probs = torch.log_softmax(logits / scale[:, None], dim=-1)  # (n, V) float32, the type of `scale`
    place = torch.device("cpu") if torch.are_deterministic_algorithms_enabled() else logits.device
    probabilities = log_probs.to(place, torch.float64, copy=True).exp_()  # (n, V)
    if truncation:
        # By logit, since probabilities round to more ties; a stable sort breaks those by token id.
        order = logits.sort(dim=-1, descending=True, stable=True).indices
        probabilities = _truncated(probabilities, order.to(place), *(column.to(place) for column in truncation))
    cumulative = probabilities.cumsum_(dim=-1)
    target = noise.to(place)[:, None] * cumulative[:, -1:]  # noise is at most 1 - 2**-53: always below the total
    drawn = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    drawn = drawn.clamp_(max=logits.shape[-1] - 1).to(logits.device)  # only NaN runs past the end
    tokens = torch.where(greedy, logits.argmax(dim=-1), drawn)  # (n,); argmax is the first of equals
    chosen = log_probs.gather(1, tokens[:, None]).squeeze(1)
    return tokens.masked_fill(chosen.isnan(), 0), chosen


def _truncated(probabilities: Tensor, order: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """The probabilities (n, V), with 0 for what top-k, top-p and min-p exclude. `order` (n, V): likeliest first."""
    ordered = probabilities.gather(1, order)
    least = min_p[:, None] * ordered[:, :1]
    rank = torch.arange(ordered.shape[-1], device=ordered.device)
    ordered.masked_fill_((rank >= top_k[:, None]) & (top_k[:, None] > 0), 0.0)
    cumulative = ordered.cumsum(dim=-1)
    # A token stays while the mass before it is below top_p: the smallest set that reaches it, never an empty one.
    outside = (cumulative - ordered) >= top_p[:, None] * cumulative[:, -1:]
    ordered.masked_fill_(outside & (top_p[:, None] < 1) & (rank > 0), 0.0)
    ordered.masked_fill_(ordered < least, 0.0)
    return torch.zeros_like(probabilities).scatter_(1, order, ordered)
