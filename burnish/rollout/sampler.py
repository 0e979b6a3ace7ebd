"""Draw one token per row from a batch of logits, on the logits' device but for the one case below.

Consumes logits (B, V), the rows' `Sampling` and one uniform number per row; hands back token ids and log-probs. The
draw is the inverse of the cumulative distribution in token-id order, in float64, so it needs one number per token and
does not depend on the other rows. Order of truncation: temperature, top-k, top-p of what top-k left, min-p.
The vocabulary is sorted only for rows that ask for top-k or top-p.

torch promises no deterministic cumulative sum of floating numbers on a GPU. Where deterministic algorithms are asked
for, truncation and draw therefore run on the CPU: slower, and the same tokens as there for the same log-probs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from burnish.rollout.base import Sampling

ELEMENTS_AT_ONCE = 1 << 24  # rows × vocabulary worked on together; bounds the float64 copies


def sample(logits: Tensor, samplings: Sequence[Sampling], noise: Tensor) -> tuple[Tensor, Tensor]:
    """`logits` (B, V), `noise` (B,) in [0, 1) → token ids (B,) int64, log-probs (B,) float32."""
    rows = max(1, ELEMENTS_AT_ONCE // logits.shape[-1])
    parts = [
        _sample_rows(logits[i : i + rows], samplings[i : i + rows], noise[i : i + rows])
        for i in range(0, len(samplings), rows)
    ]
    return torch.cat([ids for ids, _ in parts]), torch.cat([log_probs for _, log_probs in parts])


def _sample_rows(logits: Tensor, samplings: Sequence[Sampling], noise: Tensor) -> tuple[Tensor, Tensor]:
    scale = torch.tensor([s.temperature or 1.0 for s in samplings], dtype=torch.float32, device=logits.device)
    log_probs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)  # (B, V)
    ids = log_probs.argmax(dim=-1)  # (B,)
    drawn = [i for i, s in enumerate(samplings) if not s.greedy]
    if drawn:
        place = "cpu" if torch.are_deterministic_algorithms_enabled() else logits.device
        probabilities = log_probs[drawn].to(place).double().exp()
        _truncate(probabilities, [samplings[i] for i in drawn])
        ids[drawn] = _invert(probabilities, noise[drawn].to(place, torch.float64)).to(ids.device)
    return ids, log_probs.gather(1, ids[:, None]).squeeze(1)


def _invert(probabilities: Tensor, noise: Tensor) -> Tensor:
    """The first token whose cumulative probability exceeds noise × total. (B, V), (B,) → (B,)

    Noise is at most 1 - 2**-53, so the product rounds below the total and a token of probability 0 is never drawn.
    The clamp is for rows of NaN, which the caller reports.
    """
    cumulative = probabilities.cumsum(dim=-1)
    target = noise[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp_(max=cumulative.shape[-1] - 1)


def _truncate(probabilities: Tensor, samplings: Sequence[Sampling]) -> None:
    """Set to zero, in place, what top-k, top-p and min-p exclude. (B, V)"""
    sort = [i for i, s in enumerate(samplings) if s.top_k > 0 or s.top_p < 1]
    if sort:
        rows = torch.tensor(sort, device=probabilities.device)
        probabilities[rows] = _top_k_top_p(probabilities[rows], [samplings[i] for i in sort])
    floor = torch.tensor([s.min_p for s in samplings], dtype=torch.float64, device=probabilities.device)
    if any(s.min_p > 0 for s in samplings):
        least = floor[:, None] * probabilities.amax(dim=-1, keepdim=True)
        probabilities.masked_fill_(probabilities < least, 0.0)


def _top_k_top_p(probabilities: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    vocabulary = probabilities.shape[-1]
    # A stable sort breaks ties by token id, so exactly k tokens stay.
    ordered, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    top_k = torch.tensor([s.top_k if s.top_k > 0 else vocabulary for s in samplings], device=ordered.device)
    ordered.masked_fill_(torch.arange(vocabulary, device=ordered.device) >= top_k[:, None], 0.0)
    cumulative = ordered.cumsum(dim=-1)
    # A token stays while the mass before it is below top_p: the smallest set that reaches it, never an empty one.
    limit = torch.tensor([s.top_p for s in samplings], dtype=torch.float64, device=ordered.device)
    outside = (cumulative - ordered) >= (limit[:, None] * cumulative[:, -1:])
    ordered.masked_fill_(outside & (limit[:, None] < 1), 0.0)
    return torch.zeros_like(probabilities).scatter_(1, ids, ordered)
