"""The output layer and the log-softmax over the vocabulary in one: the logits of all tokens never exist at once.

Consumes the states that predict tokens (N, C), the output layer's weight (V, C) and the tokens (N,); returns, for each
token, its log-prob and what else is asked of the distribution, in float32. Works through chunks of tokens: forward and
backward hold the logits of one chunk, and between the two only values of shape (N,) are kept.

With raw logits r = states @ weight.T + bias, factor = scale / temperature and cap = softcap / temperature:

    z = factor * r, or cap * tanh(factor * r / cap)     p = softmax(z)     l = log p
    log_prob = l[target]     entropy = -Σ p l     sum_pi_squared = Σ p²

and with upstream gradients g1, g2 and g3 of the three, δ being 1 at the target and 0 elsewhere:

    dz = g1 (δ - p) - g2 p (l + entropy) + 2 g3 p (p - sum_pi_squared)     dr = factor * dz * (1 - (z / cap)²)
On a GPU the two passes over a chunk are Triton kernels; elsewhere they are the torch functions below.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

OUTPUTS = ("log_prob", "entropy", "sum_pi_squared")
LOG_SUM = "log_sum"  # of the exponentials of a row: what the kernels keep for their backward pass besides

# Logits of a chunk: 4 MB, which stay in the cache of a CPU, and 1 GiB. Where the vocabulary is large, a chunk has at
# least so many rows, because a product of fewer waits for the weight.
CHUNK_ELEMENTS = {"cpu": 2**20, "cuda": 2**28}
CHUNK_ROWS = 256


def linear_log_probs(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    outputs: Sequence[str] = ("log_prob",),
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    scale: float = 1.0,
    softcap: float | None = None,
) -> dict[str, Tensor]:
    """The named `outputs` for `targets` (N,) int64, each under the distribution that its row of `states` (N, C) gives.

    The distribution is softmax(logits / temperature), with logits = scale * (states @ weight.T + bias) and, where there
    is a `softcap`, softcap * tanh(logits / softcap). Each output is (N,) float32 and has gradients with respect to
    states, weight (V, C) and bias (V,). 16-bit weights are multiplied into float32 logits on a GPU; on a CPU the
    product is rounded to their dtype first.
    """
    cap = None if softcap is None else softcap / temperature
    names = tuple(outputs)
    values = _LinearLogProbs.apply(states, weight, bias, targets.contiguous(), names, scale / temperature, cap)
    return dict(zip(names, values, strict=True))


class _LinearLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        names: tuple[str, ...],
        factor: float,
        cap: float | None,
    ) -> tuple[Tensor, ...]:
        kept = {*names, LOG_SUM} if states.is_cuda else {*names}
        values = {name: torch.empty(len(states), dtype=torch.float32, device=states.device) for name in sorted(kept)}
        summarise, _ = _kernels(states)
        for rows, logits in _chunks(states, weight, bias):
            summarise(logits, targets[rows], factor, cap, _part(values, rows))
        needed = {name: value for name, value in values.items() if name != "log_prob"}
        ctx.save_for_backward(states, weight, bias, targets, *needed.values())
        ctx.set_materialize_grads(False)
        ctx.names, ctx.needed, ctx.factor, ctx.cap = names, tuple(needed), factor, cap
        return tuple(values[name] for name in names)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        grads = {name: g.contiguous() for name, g in zip(ctx.names, upstream, strict=True) if g is not None}
        if not grads:
            return (None,) * 7
        states, weight, bias, targets, *saved = ctx.saved_tensors
        values = dict(zip(ctx.needed, saved, strict=True))
        for_states, for_weight, for_bias = ctx.needs_input_grad[:3]
        grad_states = torch.empty(states.shape, dtype=states.dtype, device=states.device) if for_states else None
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if for_weight else None
        grad_bias = torch.zeros(bias.shape, dtype=torch.float32, device=bias.device) if for_bias else None
        _, differentiate = _kernels(states)
        for rows, logits in _chunks(states, weight, bias):
            parts = _part(grads, rows), _part(values, rows)
            grad_logits = differentiate(logits, targets[rows], ctx.factor, ctx.cap, *parts, weight.dtype)
            if grad_states is not None:
                torch.mm(grad_logits, weight, out=grad_states[rows])
            if grad_weight is not None:
                if grad_logits.dtype == torch.float32:
                    grad_weight.addmm_(grad_logits.T, states[rows])
                elif grad_logits.is_cuda:
                    torch.addmm(grad_weight, grad_logits.T, states[rows], out_dtype=torch.float32, out=grad_weight)
                else:
                    grad_weight += grad_logits.T @ states[rows]
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0, dtype=torch.float32)
            del grad_logits  # or two would be alive while the next one is made
        return (
            grad_states,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            *(None,) * 4,
        )


def _kernels(states: Tensor) -> tuple[Callable[..., None], Callable[..., Tensor]]:
    """What summarises and differentiates the logits of a chunk where `states` are."""
    if states.is_cuda:
        from burnish.ops.triton.linear_log_probs import differentiate, summarise

        return summarise, differentiate
    return summarise_torch, differentiate_torch


def _part(values: dict[str, Tensor], rows: slice) -> dict[str, Tensor]:
    return {name: value[rows] for name, value in values.items()}


def _chunks(states: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Rows of `states` and their raw logits (n, V) float32, which are in one buffer and may be overwritten."""
    count, vocabulary = len(states), len(weight)
    most = max(CHUNK_ROWS, CHUNK_ELEMENTS[states.device.type] // vocabulary)
    size = -(-count // max(1, -(-count // most)))  # chunks of even size: a last one of few rows costs as much as a full
    buffer = torch.empty((size, vocabulary), dtype=torch.float32, device=states.device)
    for start in range(0, count, max(1, size)):
        rows = slice(start, min(start + size, count))
        logits = buffer[: rows.stop - start]
        if weight.dtype == torch.float32:
            torch.mm(states[rows], weight.T, out=logits)
        elif weight.is_cuda:
            torch.mm(states[rows], weight.T, out_dtype=torch.float32, out=logits)
        else:
            logits.copy_(states[rows] @ weight.T)
        if bias is not None:
            logits += bias
        yield rows, logits


def summarise_torch(
    logits: Tensor, targets: Tensor, factor: float, cap: float | None, values: dict[str, Tensor]
) -> None:
    """Fill the (n,) tensors of `values` by name, but LOG_SUM, from raw `logits` (n, V), which are overwritten."""
    z = _shape(logits, factor, cap)
    log_p = torch.log_softmax(z, -1, out=z)
    if "log_prob" in values:
        torch.gather(log_p, 1, targets[:, None], out=values["log_prob"][:, None])
    if "entropy" in values:
        p = log_p.exp()
    elif "sum_pi_squared" in values:
        p = log_p.exp_()
    if "sum_pi_squared" in values:
        torch.linalg.vector_norm(p, dim=-1, out=values["sum_pi_squared"]).square_()
    if "entropy" in values:
        torch.sum(p.mul_(log_p), -1, out=values["entropy"]).neg_()


def differentiate_torch(
    logits: Tensor,
    targets: Tensor,
    factor: float,
    cap: float | None,
    grads: dict[str, Tensor],
    values: dict[str, Tensor],
    dtype: torch.dtype,
) -> Tensor:
    """Gradient of raw `logits` (n, V), which are overwritten, in `dtype`, from those of the outputs named in `grads`.
    `values` holds what `summarise_torch` gave for the same rows."""
    z = _shape(logits, factor, cap)
    slope = None if cap is None else (z / cap).square_().neg_().add_(1.0)
    grads = {name: (grad * factor)[:, None] for name, grad in grads.items()}  # (n, 1)
    # dz is p times a sum: of what is the same for the whole row, of a multiple of l, and of a multiple of p.
    same = z.new_zeros(len(z), 1)
    for name, grad in grads.items():
        share = -2 * grad if name == "sum_pi_squared" else -grad
        same = same + (share if name == "log_prob" else share * values[name][:, None])
    twice = 2 * grads["sum_pi_squared"] if "sum_pi_squared" in grads else None
    if "entropy" in grads:
        log_p = torch.log_softmax(z, -1, out=z)
        p = log_p.exp()
        total = log_p.mul_(-grads["entropy"]).add_(same)
        dz = (total if twice is None else total.addcmul_(p, twice)).mul_(p)
    else:
        p = torch.softmax(z, -1, out=z)
        dz = p.mul_(same if twice is None else torch.addcmul(same, p, twice))
    if "log_prob" in grads:
        dz.scatter_add_(1, targets[:, None], grads["log_prob"])
    if slope is not None:
        dz.mul_(slope)
    return dz.to(dtype)


def _shape(logits: Tensor, factor: float, cap: float | None) -> Tensor:
    """From raw logits to z, in place."""
    if factor != 1.0:
        logits.mul_(factor)
    return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)
