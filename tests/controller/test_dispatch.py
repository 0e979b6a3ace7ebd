"""The dispatch and collect functions by themselves: pure functions of (world_size, arguments)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.controller.dispatch import (
    CallSplit,
    Dispatch,
    DispatchPair,
    Execute,
    WorkerCall,
    as_list,
    find_dispatch,
    register,
    register_dispatch,
    registered_methods,
)
from burnish.protocol import DataProto


@settings(deadline=None)
@given(count=st.integers(0, 20), world_size=st.integers(1, 6))
def test_splitting_and_joining_rows_is_the_identity(count, world_size):
    pair = find_dispatch(Dispatch.DP_COMPUTE_PROTO)
    data = DataProto.from_dict({"x": torch.arange(count)}, {"uid": list(range(count))}, {"temperature": 0.7})
    split = pair.dispatch(world_size, data, flag=True)
    assert len(split.calls) == world_size
    assert len({len(call.args[0]) for call in split.calls}) == 1
    assert all(call.kwargs == {"flag": True} for call in split.calls)
    whole = pair.collect(split, [call.args[0] for call in split.calls])
    assert whole.non_tensor_batch["uid"].tolist() == list(range(count))
    assert whole.meta_info == {"temperature": 0.7}
    split.calls[0].args[0].meta_info["temperature"] = 9  # workers do not share their facts
    assert all(
        facts == {"temperature": 0.7} for facts in [data.meta_info, *(c.args[0].meta_info for c in split.calls[1:])]
    )


def test_custom_dispatch_pair_with_a_name():
    def to_last(world_size, /, *args, **kwargs):
        return CallSplit([WorkerCall((), {})] * (world_size - 1) + [WorkerCall(args, kwargs)])

    pair = DispatchPair(to_last, as_list)
    register_dispatch("test_to_last", pair)
    with pytest.raises(ValueError, match=r"the dispatch mode 'test_to_last' already exists"):
        register_dispatch("test_to_last", DispatchPair(to_last, as_list))
    assert find_dispatch("test_to_last") is pair


def test_an_unknown_mode_is_refused_where_the_class_is_written():
    with pytest.raises(ValueError, match=r"no dispatch mode 'dp_proto'; there are rank_zero, one_to_all"):
        register(dispatch_mode="dp_proto")


@pytest.mark.parametrize("mode", [m for m in Dispatch if m.name.startswith("DP_") or m is Dispatch.TOGETHER])
def test_rank_zero_alone_cannot_run_a_split_batch(mode):
    with pytest.raises(ValueError, match=f"{mode} splits a batch over all workers"):
        register(dispatch_mode=mode, execute_mode=Execute.RANK_ZERO)


def test_register_leaves_the_method_as_it_is():
    def method(self, x):
        return x

    assert register(blocking=False)(method) is method
    holder = type("Holder", (), {"method": method, "other": lambda self: None})
    [(name, mark)] = registered_methods(holder).items()
    assert (name, mark.blocking, mark.execute) == ("method", False, Execute.ALL)
    assert mark.pair is find_dispatch(Dispatch.ALL_TO_ALL)
