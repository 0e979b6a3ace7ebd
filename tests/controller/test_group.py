"""Calls through a worker group, in this process and on Ray: split, run, join; and the dispatch functions alone."""

import asyncio

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
from burnish.controller.worker import Worker
from burnish.errors import DataError, WorkerError
from burnish.protocol import DataProto


def twice(data, rank):
    return data.repeat(2)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_each_worker_gets_its_part_whatever_their_number(make_group, counter_class, rows, world_size):
    def tag(data, rank):
        return DataProto.from_dict({"x": data.batch["x"] + 100 * rank})

    group = make_group(counter_class, world_size=world_size)
    assert group.world_size == world_size
    assert group.whoami() == [(rank, world_size, rank) for rank in range(world_size)], "known from __init__ on"
    values = [10 * rank for rank in range(world_size)]
    assert group.each(values) == list(enumerate(values))
    assert group.each(values, scale=(3,) * world_size) == [(rank, 3 * value) for rank, value in enumerate(values)]
    assert group.share(rows(5)) == (0, list(range(0, 5, world_size))), "all have the whole, and rank 0 answers"
    share = -(-4 // world_size)
    assert group.apply(tag, rows(4)).batch["x"].tolist() == [x + 100 * (x // share) for x in range(4)]
    out = group.double(data=rows(5), other=rows(5), factor=10)
    assert out.batch["y"].tolist() == [11 * x for x in range(5)], "also in keywords"
    assert group.apply(lambda data, rank: None, rows(5)) is None
    facts = group.apply(lambda data, rank: DataProto(meta_info={"metrics": {"loss": float(rank)}}), rows(5))
    assert len(facts) == 0 and facts.meta_info == {"metrics": {"loss": [float(rank) for rank in range(world_size)]}}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_proto_is_split_joined_and_unpadded_and_padding_is_never_trained(make_group, counter_class, rows, world_size):
    group = make_group(counter_class, world_size=world_size)
    for count in (0, 1, 2, 3, 5, 8):
        data = rows(count)
        out = group.double(data, 3)
        assert out.batch["y"].tolist() == [3 * x for x in range(count)]
        assert out.non_tensor_batch["uid"].tolist() == list(range(count))
        share = -(-count // world_size)  # every worker has as many rows
        assert out.meta_info["metrics"]["rows"] == [share] * world_size
        assert out.batch["rank"].tolist() == [row // share for row in range(count)]
        assert sum(out.meta_info["metrics"]["trained"]) == 3 * count  # copies count nothing
        assert sum(group.measure(data)["trained"]) == 3 * count
        assert out.batch["seen_mask"].tolist() == [[1, 1, 1]] * count  # real rows keep their mask
        assert data.batch["response_mask"].tolist() == [[1, 1, 1]] * count  # and the caller's batch is as it was
        assert len(data) == count and list(data.batch.keys()) == ["x", "response_mask"]


def test_coroutine_functions_are_awaited_on_one_event_loop(make_group, counter_class):
    group = make_group(counter_class)
    assert group.on_a_loop(1) == [(0, 1, False), (1, 1, False)]
    assert group.on_a_loop.start(2).get() == [(0, 2, True), (1, 2, True)]
    with pytest.raises(WorkerError, match=r"Counter.on_a_loop failed on rank 0 of 2: RuntimeError: nothing to await"):
        group.on_a_loop(None)


def test_rank_zero_alone_and_the_same_to_all(make_group, counter_class):
    group = make_group(counter_class, 10, world_size=3)
    assert group.zero(1) == (0, 11) and group.zero(value=2) == (0, 13)
    assert [total for _, total, *_ in group.everyone(0)] == [13, 10, 10]
    assert group.first_only(5) == (0, 5)
    assert [total for _, total, *_ in group.everyone(0)] == [18, 10, 10]
    assert group.everyone(2)[1:] == [(1, 12, "", 0, None), (2, 12, "", 0, None)]
    # names that the plumbing uses
    assert group.everyone(value=0, name="n", world_size=9, function="f")[1] == (1, 12, "n", 9, "f")
    assert group.custom(["a", "b", "c"]) == [(2, "a"), (1, "b"), (0, "c")]


def test_results_that_are_no_batch_of_the_same_rows(make_group, counter_class, rows):
    def scaled(data, rank, facts):
        return DataProto.from_dict({"x": data.batch["x"] * facts.meta_info["scale"]})

    group, facts = make_group(counter_class), DataProto(meta_info={"scale": 5})
    assert group.tensors([torch.ones(3), torch.ones(5)]) == [3, 6]
    assert group.apply(scaled, rows(3), facts).batch["x"].tolist() == [0, 5, 10], "facts go to all"
    assert group.apply(lambda data, rank: None, facts) is None
    assert group.apply(twice, rows(4)).batch["x"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    joined = {"trained": [6, 6], "steps": [0, 0, 1, 1]}
    assert group.measure(rows(4)) == group.measure(rows(4), kind="proto") == joined
    assert group.measure(rows(4), kind="none") == {}


def wider(data, rank):
    return DataProto.from_dict({"responses": torch.zeros(len(data), rank + 1)})


LIST = "Counter.each needs a list with one entry for each of its 2 workers as argument 'scale', not {}; .*ONE_TO_ALL"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda group, rows: group.each([1, 2], scale=[1]), LIST.format("1 entries")),
        (lambda group, rows: group.each([1, 2], scale=7), LIST.format("int")),
        (lambda group, rows: group.each([1, 2], scale="ab"), LIST.format("str")),
        (lambda group, rows: group.double([1, 2]), "Counter.double needs a DataProto among its arguments"),
        (
            lambda group, rows: group.double(rows(4), other=rows(3)),
            r"Counter.double needs DataProtos of one length .* not \{0: 4, 'other': 3\}",
        ),
        (lambda group, rows: group.apply(rows(2), rows(2)), "Counter.apply needs a function as its first argument"),
        (lambda group, rows: group.engine_step(), "Counter.engine_step is called directly on one worker, by another"),
        (lambda group, rows: group.apply(twice, rows(5)), "Counter.apply gave 12 rows for 6, of which 1 are padding"),
        (
            lambda group, rows: group.apply(lambda data, rank: {"loss": 1.0}, rows(4)),
            r"Counter.apply must give a DataProto \(or None\) on every worker, not dict",
        ),
        (
            lambda group, rows: group.apply(wider, rows(4)),
            "Counter.apply gave batches that cannot be joined: column 'responses'",
        ),
        (
            lambda group, rows: group.measure(rows(4), kind="odd"),
            "Counter.measure must give metrics as a dict on every worker, not int",
        ),
    ],
)
def test_what_cannot_be_split_or_joined_names_the_method(make_group, counter_class, rows, call, message):
    with pytest.raises(WorkerError, match=message):
        call(make_group(counter_class), rows)


def test_futures(make_group, counter_class, rows):
    group = make_group(counter_class)
    future = group.later("x")
    assert future.get() == future.get(timeout=30.0) == [(0, "x"), (1, "x")]
    futures = [group.each.start([n, n]) for n in range(5)]  # any method can be started
    assert [future.get() for future in futures] == [[(0, n), (1, n)] for n in range(5)]
    assert group.first_only.start(7).get() == (0, 7)
    assert group.double.start(rows(3)).get().batch["y"].tolist() == [0, 2, 4]
    failing, later = group.breaks.start("typed"), group.later(None)  # a failure waits for `get`
    with pytest.raises(DataError):
        failing.get()
    with pytest.raises(WorkerError, match=r"Counter.later failed on rank 0 of 2: RuntimeError: nothing to do"):
        later.get()


def test_peers_are_called_one_by_one_and_their_failures_are_typed(make_group, counter_class):
    async def ask(peers):
        return await asyncio.gather(*[peer.call("wait", 0.01, result="x") for peer in peers])

    peers = make_group(counter_class, world_size=3).peers()
    assert [peer.rank for peer in peers] == [0, 1, 2]
    assert asyncio.run(ask(peers)) == [(0, "x"), (1, "x"), (2, "x")]
    assert asyncio.run(peers[1].call("engine_step")) == "only the engine calls me"
    with pytest.raises(DataError, match=r"^bad row$"):
        asyncio.run(peers[1].call("wait", 0, DataError("bad row")))
    with pytest.raises(WorkerError, match=r"Counter.wait failed on rank 1 of 3: OSError: no such file"):
        asyncio.run(peers[1].call("wait", 0, OSError("no such file")))
    for method in ("zero", "private"):
        with pytest.raises(WorkerError, match=f"Counter.{method} is not for peers to call; register it with"):
            asyncio.run(peers[1].call(method, 1))


def test_failures_are_typed_at_the_boundary(make_group, counter_class, rows):
    group = make_group(counter_class)
    with pytest.raises(DataError, match=r"row 3 of train.parquet has no prompt"):
        group.breaks("typed")
    with pytest.raises(DataError, match=r"^rank 1 cannot$"):
        group.share(rows(5), wrong=1)  # of one that does not answer
    with pytest.raises(WorkerError, match=r"Counter.breaks failed on rank 0 of 2: KeyError: 'w_7'") as e:
        group.breaks("untyped")
    assert isinstance(e.value.__cause__, KeyError)
    with pytest.raises(WorkerError, match=r"Counter.__init__ failed on rank 0 of 2: OSError: no such file") as e:
        make_group(counter_class, fail=OSError("no such file"))
    assert isinstance(e.value.__cause__, OSError)
    with pytest.raises(DataError, match=r"^bad row$"):
        make_group(counter_class, fail=DataError("bad row"))


def test_only_registered_methods_are_bound_and_an_override_keeps_its_mark(make_group, counter_class):
    class Sub(counter_class):
        def zero(self, value):
            return "mine", *super().zero(value)

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def each(self, value, scale=1):
            return value

    group = make_group(Sub)
    assert group.zero(4) == ("mine", 0, 4)
    assert group.each("same") == ["same", "same"], "a new mark replaces the old one"
    assert not hasattr(group, "private")
    with pytest.raises(AttributeError, match=r"'private' is not a registered method of Sub; registered are: apply,"):
        group.private()


@pytest.mark.parametrize("name", ["world_size", "spawn"])
def test_a_method_with_the_name_of_the_groups_own_is_refused(make_group, name):
    clash = type("Clash", (Worker,), {name: register()(lambda self: None)})
    with pytest.raises(WorkerError, match=f"Clash.{name} has the name of a WorkerGroup's own; rename it"):
        make_group(clash)


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
    others = [data, *(call.args[0] for call in split.calls[1:])]
    assert all(proto.meta_info == {"temperature": 0.7} for proto in others)


def test_custom_dispatch_pair_with_a_name():
    def to_last(world_size, /, *args, **kwargs):
        return CallSplit([WorkerCall((), {})] * (world_size - 1) + [WorkerCall(args, kwargs)])

    pair = DispatchPair(to_last, as_list)
    register_dispatch("test_to_last", pair)
    with pytest.raises(ValueError, match=r"the dispatch mode 'test_to_last' already exists"):
        register_dispatch("test_to_last", DispatchPair(to_last, as_list))
    assert find_dispatch("test_to_last") is pair


@pytest.mark.parametrize("mode", [m for m in Dispatch if m.name.startswith("DP_") or m is Dispatch.TOGETHER])
def test_rank_zero_alone_cannot_run_a_split_batch_and_an_unknown_mode_is_refused(mode):
    with pytest.raises(ValueError, match=r"no dispatch mode 'dp_proto'; there are rank_zero, one_to_all"):
        register(dispatch_mode="dp_proto")
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
