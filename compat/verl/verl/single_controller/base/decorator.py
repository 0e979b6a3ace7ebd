"""How calls of worker methods are split and joined: burnish's modes, and users' own pairs of functions."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, TypeVar

from burnish.controller import dispatch
from burnish.controller.dispatch import CallSplit, Dispatch, DispatchPair, Execute, WorkerCall, find_dispatch

__all__ = ["Dispatch", "Execute", "make_nd_compute_dataproto_dispatch_fn", "register"]

Method = TypeVar("Method", bound=Callable[..., Any])


def register(
    dispatch_mode: Dispatch | str | DispatchPair | Mapping[str, Callable[..., Any]] = Dispatch.ALL_TO_ALL,
    execute_mode: Execute = Execute.ALL,
    blocking: bool = True,
    materialize_futures: bool = True,
) -> Callable[[Method], Method]:
    """Mark a method as callable through a group. Arguments are results already: there are no futures among them."""
    mode = own_pair(dispatch_mode) if isinstance(dispatch_mode, Mapping) else dispatch_mode
    return dispatch.register(mode, execute_mode, blocking)


def own_pair(functions: Mapping[str, Callable[..., Any]]) -> DispatchPair:
    """{"dispatch_fn": (group, *args, **kwargs) → lists with one entry for each worker, "collect_fn": (group, outputs)
    → the result}. Of the group they may read `world_size`."""

    def split(world_size: int, /, *args: Any, **kwargs: Any) -> CallSplit:
        all_args, all_kwargs = functions["dispatch_fn"](SimpleNamespace(world_size=world_size), *args, **kwargs)
        calls = [
            WorkerCall(tuple(one[i] for one in all_args), {name: one[i] for name, one in all_kwargs.items()})
            for i in range(world_size)
        ]
        return CallSplit(calls)

    def collect(split: CallSplit, outputs: list[Any]) -> Any:
        return functions["collect_fn"](SimpleNamespace(world_size=len(split.calls)), outputs)

    return DispatchPair(split, collect)


def make_nd_compute_dataproto_dispatch_fn(mesh_name: str) -> DispatchPair:
    """Rows are split over all workers, whatever the mesh is called (`Worker._register_dispatch_collect_info`)."""
    return find_dispatch(Dispatch.DP_COMPUTE_PROTO)
