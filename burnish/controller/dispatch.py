"""How one call becomes a call for each worker, and the workers' results one result.

    class Actor(Worker):
        @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
        def compute_log_prob(self, data: DataProto) -> DataProto: ...

Every way is a `DispatchPair` of two pure functions, the first that split and the second that join, which know no
processes; `register_dispatch` adds a pair. `register` puts a mark on the method, which group.py reads from the class.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from burnish.errors import WorkerError
from burnish.protocol import DataProto, join_metrics, pad_dataproto_to_divisor, unpad_dataproto

Method = TypeVar("Method", bound=Callable[..., Any])
_MARK = "_burnish_registered"


class WorkerCall(NamedTuple):
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class CallSplit(NamedTuple):
    calls: list[WorkerCall]  # of workers 0, 1, …
    rows: int = 0  # of each DataProto after padding
    padding: int = 0  # of them, the last so many are copies
    answering: int | None = None  # the first so many workers' results are wanted, the others send nothing; None: all


@dataclass(frozen=True)
class DispatchPair:
    """One way to split a call over workers and to join their results."""

    dispatch: Callable[..., CallSplit]  # (world_size, /, *args, **kwargs): the arguments of every worker, from rank 0
    collect: Callable[[CallSplit, list[Any]], Any]  # the outputs are in the order of the calls


class Dispatch(StrEnum):
    """The ways that come with burnish; see the function of each."""

    RANK_ZERO = "rank_zero"
    ONE_TO_ALL = "one_to_all"
    ALL_TO_ALL = "all_to_all"
    TOGETHER = "together"
    DP_COMPUTE = "dp_compute"
    DP_COMPUTE_PROTO = "dp_compute_proto"
    DP_COMPUTE_PROTO_WITH_FUNC = "dp_compute_proto_with_func"
    DP_COMPUTE_METRIC = "dp_compute_metric"
    DIRECT_ROLLOUT_METHOD = "direct_rollout_method"


def to_rank_zero(world_size: int, /, *args: Any, **kwargs: Any) -> CallSplit:
    return CallSplit([WorkerCall(args, kwargs)])


def same_to_all(world_size: int, /, *args: Any, **kwargs: Any) -> CallSplit:
    return CallSplit([WorkerCall(args, dict(kwargs)) for _ in range(world_size)])


def all_together(world_size: int, /, *args: Any, **kwargs: Any) -> CallSplit:
    """The same arguments for every worker, for one computation of all of them: each takes its own share of the rows,
    collectives join what they found, and rank 0 answers for all. Batches need not divide and nothing is padded."""
    return same_to_all(world_size, *args, **kwargs)._replace(answering=1)


def own_to_each(world_size: int, /, *args: Any, **kwargs: Any) -> CallSplit:
    """Every argument is a list with one entry for each worker; worker i gets the i-th entries."""
    for name, value in [*enumerate(args), *kwargs.items()]:
        if not isinstance(value, list | tuple) or len(value) != world_size:
            got = f"{len(value)} entries" if isinstance(value, list | tuple) else type(value).__name__
            raise WorkerError(
                f"needs a list with one entry for each of its {world_size} workers as argument {name!r}, not {got}; "
                "register the method with Dispatch.ONE_TO_ALL to send the same to all"
            )
    return CallSplit(
        [WorkerCall(tuple(a[i] for a in args), {k: v[i] for k, v in kwargs.items()}) for i in range(world_size)]
    )


def rows_to_each(world_size: int, /, *args: Any, **kwargs: Any) -> CallSplit:
    """Every DataProto is padded to a multiple of world_size and split by rows; other arguments go to all as they are.
    Padding rows are copies with `response_mask` 0, so that no duplicate is trained or counted."""
    protos = {name: value for name, value in [*enumerate(args), *kwargs.items()] if isinstance(value, DataProto)}
    if not protos:
        raise WorkerError("needs a DataProto among its arguments to split over the workers, but got none")
    lengths = {name: len(data) for name, data in protos.items() if data.has_columns()}
    if len(set(lengths.values())) > 1:
        raise WorkerError(f"needs DataProtos of one length to split them alike, not {lengths}")
    rows = next(iter(lengths.values()), 0)
    padding = -rows % world_size

    def share(value: Any) -> list[Any]:
        if not isinstance(value, DataProto):
            return [value] * world_size
        padded, added = pad_dataproto_to_divisor(value, world_size)
        if added and padded.batch is not None and "response_mask" in padded.batch.keys():  # noqa: SIM118 (tensordict)
            padded.batch["response_mask"][-added:] = 0  # padding made new tensors: the caller's mask is not touched
        return padded.chunk(world_size)

    split = own_to_each(world_size, *map(share, args), **{name: share(value) for name, value in kwargs.items()})
    return split._replace(rows=rows + padding, padding=padding)


def func_and_rows_to_each(world_size: int, /, *args: Any, **kwargs: Any) -> CallSplit:
    """As `rows_to_each`, with a function as the first argument, which goes to all."""
    if not args or not callable(args[0]):
        raise WorkerError("needs a function as its first argument")
    return rows_to_each(world_size, *args, **kwargs)


def no_call(world_size: int, /, *args: Any, **kwargs: Any) -> CallSplit:
    """There is no group call: a `Peer` (group.py) calls such a method while the worker computes, as requests to its
    rollout engine and checkpoint writes do."""
    raise WorkerError(
        "is called directly on one worker, by another worker or by the controller (`group.peers()`), while the "
        "worker computes; never through a worker group"
    )


def only_one(split: CallSplit, outputs: list[Any]) -> Any:
    """The result of the one call, or of rank 0, which answers for all."""
    return outputs[0]


def as_list(split: CallSplit, outputs: list[Any]) -> list[Any]:
    return outputs


def joined_rows(split: CallSplit, outputs: list[Any]) -> DataProto | None:
    """The workers' DataProtos as one, without padding; None where every worker gave None."""
    if all(output is None for output in outputs):
        return None
    if wrong := {type(output).__name__ for output in outputs if not isinstance(output, DataProto)}:
        raise WorkerError(f"must give a DataProto (or None) on every worker, not {', '.join(sorted(wrong))}")
    try:
        whole = DataProto.concat(outputs)
    except ValueError as error:
        raise WorkerError(f"gave batches that cannot be joined: {error}") from error
    if not split.padding or not whole.has_columns():  # metrics only
        return whole
    if len(whole) != split.rows:
        raise WorkerError(
            f"gave {len(whole)} rows for {split.rows}, of which {split.padding} are padding, so its results cannot be "
            f"matched; return one row for each row, or call it with a multiple of {len(split.calls)} rows"
        )
    return unpad_dataproto(whole, split.padding)


def joined_metrics(split: CallSplit, outputs: list[Any]) -> dict[str, list[Any]]:
    """The workers' metrics, each a dict, a DataProto with meta_info["metrics"], or None, as one dict of lists."""
    found: list[Mapping[str, Any] | Sequence[Mapping[str, Any]]] = []
    for output in outputs:
        metrics = output.meta_info.get("metrics") if isinstance(output, DataProto) else output
        if metrics is not None and not isinstance(metrics, Mapping | list):
            raise WorkerError(f"must give metrics as a dict on every worker, not {type(metrics).__name__}")
        found.append(metrics or {})
    return join_metrics(found)


_PAIRS: dict[str, DispatchPair] = {
    Dispatch.RANK_ZERO: DispatchPair(to_rank_zero, only_one),
    Dispatch.ONE_TO_ALL: DispatchPair(same_to_all, as_list),
    Dispatch.ALL_TO_ALL: DispatchPair(own_to_each, as_list),
    Dispatch.TOGETHER: DispatchPair(all_together, only_one),
    Dispatch.DP_COMPUTE: DispatchPair(own_to_each, as_list),
    Dispatch.DP_COMPUTE_PROTO: DispatchPair(rows_to_each, joined_rows),
    Dispatch.DP_COMPUTE_PROTO_WITH_FUNC: DispatchPair(func_and_rows_to_each, joined_rows),
    Dispatch.DP_COMPUTE_METRIC: DispatchPair(rows_to_each, joined_metrics),
    Dispatch.DIRECT_ROLLOUT_METHOD: DispatchPair(no_call, as_list),
}


def find_dispatch(mode: str | DispatchPair) -> DispatchPair:
    """The pair of a mode's name; a pair is itself."""
    if isinstance(mode, DispatchPair):
        return mode
    if mode not in _PAIRS:
        raise ValueError(f"no dispatch mode {mode!r}; there are {', '.join(_PAIRS)}")
    return _PAIRS[mode]


def register_dispatch(name: str, pair: DispatchPair) -> None:
    """Add a way of your own, to be named in `register(dispatch_mode=name)`."""
    if name in _PAIRS:
        raise ValueError(f"the dispatch mode {name!r} already exists")
    _PAIRS[name] = pair


class Execute(StrEnum):
    """Which workers run the call: all that the dispatch has a call for, or only rank 0 (whose result is the result)."""

    ALL = "all"
    RANK_ZERO = "rank_zero"


@dataclass(frozen=True)
class Registered:
    pair: DispatchPair
    execute: Execute
    blocking: bool


# With these, running rank 0 alone would silently lose the rows of the others.
_SPLITTING = {Dispatch.TOGETHER, *(mode for mode in Dispatch if mode.startswith("dp_"))}


def register(
    dispatch_mode: Dispatch | str | DispatchPair = Dispatch.ALL_TO_ALL,
    execute_mode: Execute = Execute.ALL,
    blocking: bool = True,
) -> Callable[[Method], Method]:
    """Mark a method as callable through a WorkerGroup; one that is a coroutine function is awaited. `blocking=False`:
    the group gives a future at once, whose `get()` waits for the result; `group.method.start(...)` gives a future
    whatever the mark says."""
    mark = Registered(find_dispatch(dispatch_mode), Execute(execute_mode), blocking)
    if mark.execute is Execute.RANK_ZERO and dispatch_mode in _SPLITTING:
        raise ValueError(f"{dispatch_mode} splits a batch over all workers; Execute.RANK_ZERO would run one part of it")

    def decorate(method: Method) -> Method:
        setattr(method, _MARK, mark)
        return method

    return decorate


def registered_methods(worker_class: type) -> dict[str, Registered]:
    """The marked methods of a class by name. A subclass that overrides one without a new mark keeps the old mark."""
    members = [member for base in reversed(worker_class.__mro__) for member in vars(base).items()]
    return {name: getattr(member, _MARK) for name, member in members if hasattr(member, _MARK)}


def check_direct(worker_class: type, method: str) -> None:
    """Refuse a peer's call of a method that is not meant for peers."""
    mark = registered_methods(worker_class).get(method)
    if mark is None or mark.pair != _PAIRS[Dispatch.DIRECT_ROLLOUT_METHOD]:
        raise WorkerError(
            f"{worker_class.__name__}.{method} is not for peers to call; register it with "
            "Dispatch.DIRECT_ROLLOUT_METHOD"
        )
