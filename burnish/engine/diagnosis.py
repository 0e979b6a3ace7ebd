"""Where a NaN or an infinity comes from: the names and places of weights, gradients, modules and tokens that are not
finite. Nothing is changed but the gradients that a pass leaves behind."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from burnish.engine.optim import clip_gradients
from burnish.engine.sharding import local
from burnish.errors import ModelError
from burnish.models.loading import named

if TYPE_CHECKING:
    from burnish.engine.trainable import Trainable


@dataclass(frozen=True)
class TokenPlace:
    """A token of a batch: its row, and its number in the response."""

    row: int
    token: int


def grad_norm(trainable: "Trainable") -> float:
    return float(clip_gradients(trainable.gradients.values(), None))


def bad_weights(module: nn.Module) -> list[str]:
    """The names of the parameters that hold a NaN or an infinity, also of those that are not trained."""
    return [name for name, parameter in module.named_parameters() if not _is_finite(local(parameter))]


def check_weights(module: nn.Module, path: str) -> None:
    """ModelError where a model that was just loaded from `path` holds a NaN or an infinity, which no learning
    rate is to blame for."""
    if bad := bad_weights(module):
        raise ModelError(
            f"{path}: the weights hold NaN or infinities, in {named(bad)}; copy the model again, or name another one"
        )


def bad_gradients(trainable: "Trainable") -> list[str]:
    return [name for name, gradient in trainable.gradients.items() if not _is_finite(gradient)]


def first_bad_module(module: nn.Module, run: Callable[[], object]) -> str | None:
    """The first module, in the order in which they finish, to give a NaN or an infinity while `run` runs. A module that
    another one computes itself, without calling it, is not seen."""
    found: list[str] = []

    def look(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if not found and not all(map(_is_finite, _tensors(output))):
            found.append(name or type(module).__name__)

    hooks = [part.register_forward_hook(partial(look, name)) for name, part in module.named_modules()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


def first_bad_token(values: Mapping[str, Tensor], mask: Tensor, row: int) -> int | None:
    """The first token of a row, among those in `mask` (B, R), with a value (B, R) that is NaN or infinite."""
    bad = torch.stack([~value[row].isfinite() for value in values.values()]).any(0) & mask[row].bool()  # (R,)
    return int(bad.nonzero()[0]) if bool(bad.any()) else None


def largest(values: Tensor, mask: Tensor) -> tuple[float, TokenPlace] | None:
    """The finite value of the largest size among the tokens in `mask`, and its place; None where there is none."""
    size = torch.where(mask.bool() & values.isfinite(), values.abs().double(), -math.inf)  # (B, R)
    if not size.numel() or bool(size.max() < 0):
        return None
    row, token = divmod(int(size.argmax()), size.shape[1])
    return float(values[row, token]), TokenPlace(row, token)


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from _tensors(list(output.values()))
    elif isinstance(output, list | tuple):
        for item in output:
            yield from _tensors(item)
