"""How a worker's error crosses to the controller, and which of several workers' errors is the cause.

A deliberate error (BurnishError) arrives as itself, with its message; any other one is the cause of a WorkerError
(worker.py's `failed`). When one worker fails, those that compute with it fail too, or wait for it: `Weight` says whose
error is the reason and whose only a consequence.
"""

import pickle
import traceback
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch.distributed

from burnish import errors
from burnish.errors import BurnishError, WorkerDied, WorkerError

_BROKEN = ("connection closed by peer", "connection reset by peer", "broken pipe", "connection refused", "nccl", "gloo")


class Weight(IntEnum):
    """The lower, the nearer an error is to the cause."""

    DIED = 0  # a process has died: the worker's own, or one that it had called
    TYPED = 1
    UNTYPED = 2
    BROKEN = 3  # a collective lost another worker, which is likely the one to hear about


@dataclass(frozen=True)
class Carried:
    """An error on its way between processes."""

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
    weight = Weight.TYPED if not untyped else Weight.BROKEN if _is_broken(cause) else Weight.UNTYPED
    if isinstance(error, WorkerDied):
        weight = Weight.DIED
    name = next(cls.__name__ for cls in type(error).__mro__ if getattr(errors, cls.__name__, None) is cls)
    # The class is called with other arguments than those it keeps (NotAvailable), so it is made without its __init__.
    exact = _pickled((type(error), error.args, vars(error)))
    cause_text = "".join(traceback.format_exception(cause)) if cause is not None else ""
    return Carried(name, str(error), exact, _pickled(cause) if cause is not None else None, cause_text, weight)


def restore(carried: Carried) -> BurnishError:
    """The error again: with its own class and cause where this process knows them, else the nearest."""
    error = _made_again(carried)
    if carried.cause_text:
        cause = _unpickled(carried.cause)
        if not isinstance(cause, BaseException):
            cause = RuntimeError(carried.cause_text.rstrip().rpartition("\n")[2])
        cause.add_note(f"as it was raised in the worker:\n{carried.cause_text}")
        error.__cause__ = cause
    return error


def _made_again(carried: Carried) -> BurnishError:
    match _unpickled(carried.exact):
        case (type() as cls, tuple() as args, dict() as state) if issubclass(cls, BurnishError):
            error = cls.__new__(cls, *args)
            vars(error).update(state)
            return error
    cls = getattr(errors, carried.name)
    nearest: BurnishError = cls.__new__(cls, carried.text)
    return nearest


def _is_broken(cause: BaseException | None) -> bool:
    if isinstance(cause, torch.distributed.DistError):
        return True
    return isinstance(cause, RuntimeError) and any(word in str(cause).lower() for word in _BROKEN)


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
