"""`register`: marks a worker's method as callable through a WorkerGroup, and says how.

    class Actor(Worker):
        @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
        def compute_log_prob(self, data: DataProto) -> DataProto: ...

The method itself stays as it is; the mark is a `Registered` on it, which group.py reads from the class.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from burnish.controller.dispatch import Dispatch, DispatchPair, find_dispatch

_MARK = "_burnish_registered"
Method = TypeVar("Method", bound=Callable[..., Any])


class Execute(StrEnum):
    """Which workers run the call: all that the dispatch has a call for, or only rank 0 (whose result is the result)."""

    ALL = "all"
    RANK_ZERO = "rank_zero"


@dataclass(frozen=True)
class Registered:
    """How calls of one method are made."""

    pair: DispatchPair
    execute: Execute
    blocking: bool

    @property
    def direct(self) -> bool:
        """Whether peers call it (group.py's `Peer`), and not the group."""
        return self.pair == find_dispatch(Dispatch.DIRECT_ROLLOUT_METHOD)


# With these, running rank 0 alone would silently lose the rows of the others.
_SPLITTING = {
    Dispatch.TOGETHER,
    Dispatch.DP_COMPUTE,
    Dispatch.DP_COMPUTE_PROTO,
    Dispatch.DP_COMPUTE_PROTO_WITH_FUNC,
    Dispatch.DP_COMPUTE_METRIC,
}


def register(
    dispatch_mode: Dispatch | str | DispatchPair = Dispatch.ALL_TO_ALL,
    execute_mode: Execute = Execute.ALL,
    blocking: bool = True,
) -> Callable[[Method], Method]:
    """Mark a method. `blocking=False`: the group gives a future at once, whose `get()` waits for the result.

    `group.method.start(...)` gives a future whatever the mark says.
    """
    mark = Registered(find_dispatch(dispatch_mode), Execute(execute_mode), blocking)
    if mark.execute is Execute.RANK_ZERO and dispatch_mode in _SPLITTING:
        raise ValueError(f"{dispatch_mode} splits a batch over all workers; Execute.RANK_ZERO would run one part of it")

    def decorate(method: Method) -> Method:
        setattr(method, _MARK, mark)
        return method

    return decorate


def registered_methods(worker_class: type) -> dict[str, Registered]:
    """The marked methods of a class by name. A subclass that overrides one without a new mark keeps the old mark."""
    found: dict[str, Registered] = {}
    for base in reversed(worker_class.__mro__):
        marks = {name: getattr(member, _MARK, None) for name, member in vars(base).items()}
        found.update({name: mark for name, mark in marks.items() if mark is not None})
    return found
