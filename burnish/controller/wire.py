"""What crosses from one process to another: values, and errors with the reason for them.

A value is bytes and, separately, the memory of its tensors. So each tensor can be put into shared memory once and be
read there by many processes without a copy; it must not be changed in place. Tensors come back on the CPU. A deliberate
error (BurnishError) arrives as itself; any other one as the cause of a WorkerError.
"""

import io
import pickle
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed

from burnish import errors
from burnish.errors import BurnishError, WorkerDied, WorkerError, text_of

_BROKEN = ("connection closed by peer", "connection reset by peer", "broken pipe", "connection refused", "nccl", "gloo")


class PackedColumns(NamedTuple):
    skeleton: bytes  # the pickle, in which tensors are numbers
    tensors: list[torch.Tensor]  # in the order of their numbers


def pack(value: Any, pickler: type[pickle.Pickler] = pickle.Pickler) -> PackedColumns:
    """Take a value apart; a tensor that needs a gradient, or is no plain dense one, stays in the pickle. cloudpickle's
    `pickler` also takes functions and classes by value."""
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
    skeleton: bytes, memory: Sequence[np.ndarray], on_tensor: Callable[[int, torch.Tensor], None] | None = None
) -> Any:
    """The value again; its tensors use `memory`, the `flat` arrays in the order of `PackedColumns.tensors`.
    `on_tensor` is called with the number of each array and the tensor made of it."""
    made: dict[int, torch.Tensor] = {}

    class Joining(pickle.Unpickler):
        def persistent_load(self, mark: Any) -> torch.Tensor:
            number, dtype, shape = mark
            if number not in made:
                made[number] = _tensor(memory[number], dtype, shape)
                if on_tensor is not None:
                    on_tensor(number, made[number])
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


class Weight(IntEnum):
    """The lower, the nearer an error is to the cause: when one worker fails, those that compute with it fail too."""

    DIED = 0  # a process has died: the worker's own, or one that it had called
    TYPED = 1
    UNTYPED = 2
    BROKEN = 3  # a collective lost another worker, which is likely the one to hear about


@dataclass(frozen=True)
class Carried:
    name: str  # of the nearest class in burnish/errors.py
    text: str
    exact: bytes | None  # class, arguments and attributes, where they have a pickle
    cause: bytes | None
    cause_text: str
    weight: Weight


def carry(error: BurnishError) -> Carried:
    """Make an error fit to travel; nothing here can fail."""
    cause = error.__cause__
    untyped = isinstance(error, WorkerError) and cause is not None and not isinstance(cause, BurnishError)
    lost = isinstance(cause, RuntimeError) and any(word in text_of(cause).lower() for word in _BROKEN)
    broken = lost or isinstance(cause, torch.distributed.DistError)
    weight = Weight.TYPED if not untyped else Weight.BROKEN if broken else Weight.UNTYPED
    if isinstance(error, WorkerDied):
        weight = Weight.DIED
    name = next(cls.__name__ for cls in type(error).__mro__ if getattr(errors, cls.__name__, None) is cls)
    # The class is called with other arguments than those it keeps (NotAvailable), so it is made without its __init__.
    exact = _pickled((type(error), error.args, vars(error)))
    cause_text = "".join(traceback.format_exception(cause)) if cause is not None else ""
    return Carried(name, text_of(error), exact, _pickled(cause) if cause is not None else None, cause_text, weight)


def restore(carried: Carried) -> BurnishError:
    """The error again: with its own class and cause where this process knows them, else the nearest."""
    match _unpickled(carried.exact):
        case (type() as cls, tuple() as args, dict() as state) if issubclass(cls, BurnishError):
            error: BurnishError = cls.__new__(cls, *args)
            vars(error).update(state)
        case _:
            nearest = getattr(errors, carried.name)
            error = nearest.__new__(nearest, carried.text)
    if carried.cause_text:
        cause = _unpickled(carried.cause)
        if not isinstance(cause, BaseException):
            cause = RuntimeError(carried.cause_text.rstrip().rpartition("\n")[2])
        cause.add_note(f"as it was raised in the worker:\n{carried.cause_text}")
        error.__cause__ = cause
    return error


def _pickled(value: Any) -> bytes | None:
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001 (whatever its own __reduce__ raises: it goes as text)
        return None


def _unpickled(content: bytes | None) -> Any:
    try:
        return None if content is None else pickle.loads(content)  # noqa: S301 (from our own worker)
    except Exception:  # noqa: BLE001 (a module that is not here, arguments that its class does not take)
        return None
