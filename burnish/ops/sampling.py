"""One step of sampling for rows whose decode state lies on the device: steps follow each other without the host.

Consumes logits and `Rows`; draws one token per row, writes what the next step feeds into the same `Rows`, and leaves
token, log-prob and status in `Rows.out` for the host to read when it likes. The draw is that of rollout/sampler.py
without truncation: rows that ask for top-k, top-p or min-p are drawn there and come in by `advance`.

On a GPU `sample_and_advance` is two Triton kernels; elsewhere it is the torch twin below. The two sum in another order,
so they may differ where the noise falls within a rounding error of the border between two tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

STOPS = 8  # token ids that may end a row on the device
IDLE, GOES_ON, ENDED = 0, 1, 2  # status of a row in `Rows.out`
ELEMENTS_AT_ONCE = 1 << 22  # rows × vocabulary the twin works on together; bounds its float64 copies


@dataclass(frozen=True)
class Rows:
    """Decode state, one entry per row, all on one device. Tensors are contiguous and changed in place."""

    ids: Tensor  # (C,) int64: the token to feed next
    positions: Tensor  # (C,) int64: its position
    left: Tensor  # (C,) int32: tokens the row may still sample; 0: it is idle
    drawn: Tensor  # (C,) int64: place in the completion of the next token to sample, which is the place of its noise
    seeds: Tensor  # (C,) int64: bit pattern of the request's unsigned 64-bit seed
    temperature: Tensor  # (C,) float32; 0: greedy
    stops: Tensor  # (C, STOPS) int64: token ids that end the row; -1: none
    out: Tensor  # (3, C) float32: token id, log-prob, status (IDLE, GOES_ON, ENDED) of the newest step


def uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """One float64 in [0, 1) for each seed (n,) int64 and position (n,) int64.

    Bit for bit `rollout.base.uniforms`. torch has no unsigned 64-bit arithmetic, and needs none: sums and products of
    int64 wrap around to the same bits.
    """
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


def advance(rows: Rows, index: Tensor | None, tokens: Tensor, log_probs: Tensor) -> None:
    """Take sampled `tokens` (n,) and their `log_probs` (n,) for the rows `index` (n,); None: rows 0 to n-1.

    A row ends when it draws one of its stops or may sample no more. Idle rows get their status and keep all else.
    """
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


def sample_and_advance(logits: Tensor, rows: Rows, index: Tensor | None = None, source: Tensor | None = None) -> None:
    """Row `index[i]` (None: i) draws from `logits[source[i]]` (None: i), then moves on as `advance` says.

    `logits` is (n, V) in any float type, each row contiguous; `index` and `source` are (n,) int64 and distinct but for
    idle rows. The log-prob is log_softmax(logits / temperature); at temperature 0 of the unscaled logits, and the token
    is the first of the greatest. Else it is the first whose cumulative probability exceeds noise × total. Logits that
    give no distribution (a NaN, +inf, nothing but -inf) give token 0 with log-prob NaN, which the host reports.
    """
    if logits.is_cuda:
        from burnish.ops.triton.sampling import sample_and_advance as launch

        launch(logits, rows, index, source)
    else:
        sample_and_advance_twin(logits, rows, index, source)


def sample_and_advance_twin(
    logits: Tensor, rows: Rows, index: Tensor | None = None, source: Tensor | None = None
) -> None:
    """`sample_and_advance` in plain torch, on any device."""
    count = len(index) if index is not None else len(logits) if source is None else len(source)
    at = slice(count) if index is None else index
    temperature, noise = rows.temperature[at], uniforms(rows.seeds[at], rows.drawn[at])  # (n,), (n,)
    step = max(1, ELEMENTS_AT_ONCE // logits.shape[-1])
    parts = []
    for i in range(0, count, step):
        some = slice(i, min(i + step, count))
        parts.append(_draw(logits[some if source is None else source[some]], temperature[some], noise[some]))
    if parts:
        tokens, log_probs = (torch.cat(part) for part in zip(*parts, strict=True))
        advance(rows, index, tokens, log_probs)


def _draw(logits: Tensor, temperature: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (n, V), temperature (n,), noise (n,) → token ids (n,) int64, log-probs (n,) float32."""
    greedy = temperature == 0
    scale = torch.where(greedy, 1.0, temperature)
    log_probs = torch.log_softmax(logits / scale[:, None], dim=-1)  # (n, V) float32, the type of `scale`
    tokens = torch.zeros_like(temperature, dtype=torch.int64)
    if greedy.any():
        tokens = log_probs.argmax(dim=-1)  # (n,), the first of equals
    if not greedy.all():
        cumulative = log_probs.double().exp_().cumsum_(dim=-1)  # (n, V)
        target = noise[:, None] * cumulative[:, -1:]  # noise is at most 1 - 2**-53: always below the total
        drawn = torch.searchsorted(cumulative, target, right=True).squeeze(1)
        tokens = torch.where(greedy, tokens, drawn.clamp_(max=logits.shape[-1] - 1))  # only NaN runs past the end
    chosen = log_probs.gather(1, tokens[:, None]).squeeze(1)
    return tokens.masked_fill(chosen.isnan(), 0), chosen
