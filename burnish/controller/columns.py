"""A value as bytes and, separately, the memory of its tensors: what crosses from one process to another.

`pack` pickles a value (a DataProto, a tuple of arguments, whatever has a pickle) in which tensors are numbers only; the
tensors themselves stay outside, as flat numpy views of their memory. So each of them can be put into shared memory
separately, once, and be read there by many processes; `unpack` makes tensors over that memory without copying it. Such
tensors must not be changed in place: whoever shares the memory would see it.

Tensors come back on the CPU. One that needs a gradient, or is no plain dense tensor, keeps its kind.
"""

import io
import pickle
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch


class PackedColumns(NamedTuple):
    """`skeleton`: the pickle. `tensors`: what it left out, in the order of their numbers."""

    skeleton: bytes
    tensors: list[torch.Tensor]


def pack(value: Any, pickler: type[pickle.Pickler] = pickle.Pickler) -> PackedColumns:
    """Take a value apart; `pickler` is the kind of pickle (cloudpickle's also takes functions and classes by value)."""
    tensors: list[torch.Tensor] = []
    numbers: dict[int, int] = {}

    class Leaving(pickler):  # type: ignore[misc, valid-type]
        def persistent_id(self, part: Any) -> Any:
            if type(part) is not torch.Tensor or part.layout is not torch.strided or part.requires_grad:
                return None
            if id(part) not in numbers:  # one tensor in two places stays one
                numbers[id(part)] = len(tensors)
                tensors.append(part)
            return numbers[id(part)], part.dtype, tuple(part.shape)

    file = io.BytesIO()
    Leaving(file, protocol=5).dump(value)
    return PackedColumns(file.getvalue(), tensors)


def unpack(
    skeleton: bytes, memory: Sequence[np.ndarray], tell: Callable[[int, torch.Tensor], None] | None = None
) -> Any:
    """The value again; its tensors use `memory`, the `flat` arrays in the order of `PackedColumns.tensors`.

    `tell` is called with the number of each array and the tensor made of it.
    """
    made: dict[int, torch.Tensor] = {}

    class Joining(pickle.Unpickler):
        def persistent_load(self, mark: Any) -> torch.Tensor:
            number, dtype, shape = mark
            if number not in made:
                made[number] = _tensor(memory[number], dtype, shape)
                if tell is not None:
                    tell(number, made[number])
            return made[number]

    return Joining(io.BytesIO(skeleton)).load()


def flat(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a tensor as bytes; a copy only where the tensor is on a GPU or not contiguous."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _tensor(memory: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not len(memory):
        return torch.empty(shape, dtype=dtype)
    with warnings.catch_warnings():  # shared memory is read-only to numpy; that nobody may write is said above
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(memory).view(dtype).view(shape)


class Memo:
    """What was made of a tensor, as long as the tensor lives and is not changed: `memo(tensor)` makes it once."""

    def __init__(self, make: Callable[[torch.Tensor], Any]):
        self._make = make
        self._made: dict[int, tuple[Any, int, Any]] = {}

    def __call__(self, tensor: torch.Tensor) -> Any:
        if tensor.is_inference():  # has no version that would show changes
            return self._make(tensor)
        key = id(tensor)
        seen = self._made.get(key)
        if seen is not None and seen[0]() is tensor and seen[1] == tensor._version:
            return seen[2]
        made = self._make(tensor)
        self.note(tensor, made)
        return made

    def note(self, tensor: torch.Tensor, made: Any) -> None:
        """Something was made of a tensor already, elsewhere."""
        key = id(tensor)
        gone = weakref.ref(tensor, lambda reference: self._forget(key, reference))
        self._made[key] = (gone, tensor._version, made)

    def _forget(self, key: int, reference: Any) -> None:
        seen = self._made.get(key)
        if seen is not None and seen[0] is reference:  # the number may be another tensor's by now
            self._made.pop(key, None)
