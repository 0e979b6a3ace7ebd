"""Ulysses sequence parallelism: several processes share each packed line of tokens.

Each has an equal slice, which embeddings, norms and feed-forward layers run over. For attention a process trades tokens
of its slice for a share of the heads over the whole line, and back afterwards. It starts its backward pass from the
values of its own places, so the sum over processes is the gradient of the whole.

The idea is DeepSpeed-Ulysses' (Jacobs et al. 2023). Keys and values of fewer heads than processes are repeated.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from burnish.ops.varlen_attention import Sequences, varlen_attention

KEY = "ulysses_sequence_parallel_size"


class Ulysses:
    """The processes that share lines. All of them make the same passes together."""

    def __init__(self, group: dist.ProcessGroup):
        self.group = group
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)

    def slice_of(self, ids: Tensor, positions: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor, Sequences]:
        """Ids and positions (T/k,) of this process's slice, and the sequences of the whole line. One that does not
        divide is filled up by one more sequence, which nobody reads."""
        missing = -len(ids) % self.size
        if missing:
            ids = F.pad(ids, (0, missing))
            positions = torch.cat([positions, torch.arange(missing, dtype=positions.dtype, device=positions.device)])
            sequences = Sequences.of([*sequences.lengths, missing], ids.device)
        here = self._range(len(ids))
        return ids[here], positions[here], sequences

    def attention(self, query: Tensor, key: Tensor, value: Tensor, sequences: Sequences, **scores: Any) -> Tensor:
        """`varlen_attention` of the whole line, for the tokens of this slice: (T/k, H, D) over (T/k, Hkv, D)."""
        repeats = _repeats(query.shape[1], key.shape[1], self.size)
        if repeats > 1:
            key, value = (part.repeat_interleave(repeats, dim=1) for part in (key, value))
        parts = [part.unflatten(1, (self.size, -1)).transpose(0, 1) for part in (query, key, value)]  # (k, T/k, h, D)
        line: Tensor = _Exchange.apply(torch.cat(parts, dim=2), self.group)
        query, key, value = line.flatten(0, 1).split([part.shape[2] for part in parts], dim=1)  # (T, h, D)
        attended = varlen_attention(query, key, value, sequences, **scores)  # (T, H/k, D)
        back: Tensor = _Exchange.apply(attended.unflatten(0, (self.size, -1)), self.group)  # (k, T/k, H/k, D)
        return back.transpose(0, 1).flatten(1, 2)

    def own(self, places: Tensor, tokens: int) -> tuple[slice, Tensor]:
        """Of `places` (N,) in a line of so many tokens, in rising order: which of them are this process's, and where
        these are in its slice."""
        here = self._range(tokens + -tokens % self.size)
        bounds = torch.tensor([here.start, here.stop], dtype=places.dtype, device=places.device)
        first, last = torch.searchsorted(places, bounds).tolist()
        return slice(first, last), places[first:last] - here.start

    def whole(self, values: Mapping[str, Tensor], own: slice, count: int) -> dict[str, Tensor]:
        """The values (N,) of all places from those that each process has for its own."""
        return dict(zip(values, _Join.apply(self.group, own, count, *values.values()), strict=True))

    def _range(self, tokens: int) -> slice:
        """The places of this process's slice in a line that divides."""
        return slice(self.rank * tokens // self.size, (self.rank + 1) * tokens // self.size)


def heads_problem(heads: int, processes: int) -> str | None:
    """Why so many processes cannot share attention heads; None: they can."""
    if heads % processes == 0:
        return None
    divisors = ", ".join(str(n) for n in range(2, heads + 1) if heads % n == 0) or "no more than one"
    return f"its {heads} attention heads can be divided evenly among {divisors} processes only"


def _repeats(heads: int, kv_heads: int, processes: int) -> int:
    """How often each head of keys and values is repeated, so that every process gets those that its queries read."""
    grouped = heads // kv_heads
    return next(n for n in range(1, grouped + 1) if grouped % n == 0 and kv_heads * n % processes == 0)


class _Exchange(torch.autograd.Function):
    """Part i of x (k, …) goes to process i, and what it sends is part i of the result; gradients go the same way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _exchanged(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _exchanged(gradients[0], ctx.group), None


def _exchanged(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x, group=group)
    return out


class _Join(torch.autograd.Function):
    """Values of own places become those of all. A gradient stays where its place is, so none is counted twice."""

    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup, own: slice, count: int, *values: Tensor) -> tuple[Tensor, ...]:
        ctx.own = own
        ctx.set_materialize_grads(False)
        joined = values[0].new_zeros(len(values), count)
        joined[:, own] = torch.stack(values)
        dist.all_reduce(joined, group=group)  # the others have 0 there, so these are the same bits everywhere
        return tuple(row.clone() for row in joined)  # not views, which may not be written to

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        return None, None, None, *(None if g is None else g[ctx.own] for g in gradients)
