"""Calls through a worker group, on every executor there is (conftest.FACTORIES): split, run, join."""

import asyncio

import pytest
import torch

from burnish.controller.decorator import register
from burnish.controller.dispatch import Dispatch
from burnish.controller.worker import Worker
from burnish.errors import DataError, WorkerError
from burnish.protocol import DataProto

WORLDS = [1, 2, 3, 4]


@pytest.mark.parametrize("world_size", WORLDS)
def test_a_worker_knows_its_place_from_init_on(make_group, counter_class, world_size):
    group = make_group(counter_class, world_size=world_size)
    assert group.world_size == world_size
    assert group.whoami() == [(rank, world_size, rank) for rank in range(world_size)]


def test_rank_zero(make_group, counter_class):
    group = make_group(counter_class, 10, world_size=3)
    assert group.zero(1) == (0, 11)
    assert group.zero(value=2) == (0, 13)
    assert [total for _, total, *_ in group.everyone(0)] == [13, 10, 10]


def test_one_to_all_also_with_names_that_the_plumbing_uses(make_group, counter_class):
    group = make_group(counter_class, start=1, world_size=2)
    assert group.everyone(2) == [(0, 3, "", 0, None), (1, 3, "", 0, None)]
    assert group.everyone(value=0, name="n", world_size=9, function="f")[1] == (1, 3, "n", 9, "f")


def test_execute_rank_zero_gives_its_result_and_leaves_the_others_alone(make_group, counter_class):
    group = make_group(counter_class, world_size=3)
    assert group.first_only(5) == (0, 5)
    assert [total for _, total, *_ in group.everyone(0)] == [5, 0, 0]


@pytest.mark.parametrize("world_size", WORLDS)
def test_all_to_all_gives_each_worker_its_own(make_group, counter_class, world_size):
    group = make_group(counter_class, world_size=world_size)
    values = [10 * rank for rank in range(world_size)]
    assert group.each(values) == list(enumerate(values))
    assert group.each(values, scale=(3,) * world_size) == [(rank, 3 * value) for rank, value in enumerate(values)]


@pytest.mark.parametrize("world_size", WORLDS)
def test_together_gives_all_workers_the_whole_and_rank_zero_answers(make_group, counter_class, rows, world_size):
    group = make_group(counter_class, world_size=world_size)
    assert group.share(rows(5)) == (0, list(range(0, 5, world_size)))


def test_a_failure_of_a_worker_that_does_not_answer_is_reported(make_group, counter_class, rows):
    with pytest.raises(DataError, match=r"^rank 1 cannot$"):
        make_group(counter_class).share(rows(5), wrong=1)


@pytest.mark.parametrize(("wrong", "got"), [([1], "1 entries"), (7, "int"), ("ab", "str")])
def test_all_to_all_names_the_argument_that_is_no_list(make_group, counter_class, wrong, got):
    with pytest.raises(WorkerError, match=r"Counter.each needs a list with one entry for each of its 2 workers") as e:
        make_group(counter_class).each([1, 2], scale=wrong)
    assert f"as argument 'scale', not {got}" in str(e.value)
    assert "Dispatch.ONE_TO_ALL" in str(e.value)


def test_dp_compute_takes_lists_of_tensors(make_group, counter_class):
    sums = make_group(counter_class, world_size=2).tensors([torch.ones(3), torch.ones(5)])
    assert sums == [3, 6]


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_proto_is_split_joined_and_unpadded(make_group, counter_class, rows, world_size, count):
    group = make_group(counter_class, world_size=world_size)
    data = rows(count)
    out = group.double(data, 3)
    assert out.batch["y"].tolist() == [3 * x for x in range(count)]
    assert out.non_tensor_batch["uid"].tolist() == list(range(count))
    share = -(-count // world_size)  # every worker has as many rows
    assert out.meta_info["metrics"]["rows"] == [share] * world_size
    assert out.batch["rank"].tolist() == [row // share for row in range(count)]
    assert len(data) == count and list(data.batch.keys()) == ["x"]


@pytest.mark.parametrize("world_size", WORLDS)
def test_proto_in_keywords_is_split_alike(make_group, counter_class, rows, world_size):
    out = make_group(counter_class, world_size=world_size).double(data=rows(5), other=rows(5), factor=10)
    assert out.batch["y"].tolist() == [11 * x for x in range(5)]


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("count", [1, 3, 5, 8])
def test_padding_is_never_trained(make_group, counter_class, rows, world_size, count):
    data = rows(count, mask=True)
    group = make_group(counter_class, world_size=world_size)
    out = group.double(data)
    assert sum(out.meta_info["metrics"]["trained"]) == 3 * count  # copies count nothing
    assert out.batch["seen_mask"].tolist() == [[1, 1, 1]] * count  # real rows keep their mask
    assert data.batch["response_mask"].tolist() == [[1, 1, 1]] * count  # and the caller's batch is as it was
    assert sum(group.measure(data)["trained"]) == 3 * count


def test_an_empty_batch_reaches_every_worker(make_group, counter_class, rows):
    out = make_group(counter_class, world_size=3).double(rows(0))
    assert len(out) == 0
    assert out.batch["y"].shape == (0,)
    assert out.meta_info["metrics"]["rows"] == [0, 0, 0]


def test_a_batch_of_facts_goes_to_all(make_group, counter_class, rows):
    def scaled(data, rank, facts):
        return DataProto.from_dict({"x": data.batch["x"] * facts.meta_info["scale"]})

    group = make_group(counter_class, world_size=2)
    assert group.apply(scaled, rows(3), DataProto(meta_info={"scale": 5})).batch["x"].tolist() == [0, 5, 10]
    assert group.give(DataProto(meta_info={"scale": 5}), "none") is None


@pytest.mark.parametrize("world_size", WORLDS)
def test_results_without_rows(make_group, counter_class, rows, world_size):
    group = make_group(counter_class, world_size=world_size)
    assert group.give(rows(5), "none") is None
    facts = group.give(rows(5), "facts")
    assert len(facts) == 0
    assert facts.meta_info == {"metrics": {"loss": [float(rank) for rank in range(world_size)]}}


def test_more_rows_than_went_in(make_group, counter_class, rows):
    group = make_group(counter_class, world_size=2)
    assert group.give(rows(4), "twice").batch["x"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(WorkerError, match=r"Counter.give gave 12 rows for 6, of which 1 are padding"):
        group.give(rows(5), "twice")


def test_results_that_do_not_join(make_group, counter_class, rows):
    group = make_group(counter_class, world_size=2)
    with pytest.raises(WorkerError, match=r"Counter.give must give a DataProto \(or None\) on every worker, not dict"):
        group.give(rows(4), "dict")
    with pytest.raises(WorkerError, match=r"Counter.give gave batches that cannot be joined: column 'responses'"):
        group.give(rows(4), "widths")


def test_proto_arguments_that_cannot_be_split(make_group, counter_class, rows):
    group = make_group(counter_class, world_size=2)
    with pytest.raises(WorkerError, match=r"Counter.double needs a DataProto among its arguments"):
        group.double([1, 2])
    with pytest.raises(WorkerError, match=r"Counter.double needs DataProtos of one length .* not \{0: 4, 'other': 3\}"):
        group.double(rows(4), other=rows(3))


@pytest.mark.parametrize("world_size", WORLDS)
def test_proto_with_func(make_group, counter_class, rows, world_size):
    def tag(data, rank):
        return DataProto.from_dict({"x": data.batch["x"] + 100 * rank})

    out = make_group(counter_class, world_size=world_size).apply(tag, rows(4))
    share = -(-4 // world_size)
    assert out.batch["x"].tolist() == [x + 100 * (x // share) for x in range(4)]


def test_proto_with_func_needs_a_function(make_group, counter_class, rows):
    with pytest.raises(WorkerError, match=r"Counter.apply needs a function as its first argument"):
        make_group(counter_class).apply(rows(2), rows(2))


def test_metrics_become_lists_by_key(make_group, counter_class, rows):
    group = make_group(counter_class, world_size=2)
    joined = {"trained": [2, 2], "steps": [0, 0, 1, 1]}
    assert group.measure(rows(4)) == joined
    assert group.measure(rows(4), kind="proto") == joined
    assert group.measure(rows(4), kind="none") == {}
    with pytest.raises(WorkerError, match=r"Counter.measure must give metrics as a dict on every worker, not int"):
        group.measure(rows(4), kind="odd")


def test_a_rollout_method_has_no_group_call(make_group, counter_class):
    with pytest.raises(WorkerError, match=r"Counter.engine_step is called directly on one worker, by another"):
        make_group(counter_class).engine_step()


def test_custom_dispatch_pair(make_group, counter_class):
    assert make_group(counter_class, world_size=3).custom(["a", "b", "c"]) == [(2, "a"), (1, "b"), (0, "c")]


def test_non_blocking_gives_a_future(make_group, counter_class):
    group = make_group(counter_class)
    future = group.later("x")
    assert future.get() == [(0, "x"), (1, "x")]
    assert future.get(timeout=30.0) == [(0, "x"), (1, "x")]


def test_any_method_can_be_started(make_group, counter_class, rows):
    group = make_group(counter_class)
    futures = [group.each.start([n, n]) for n in range(5)]
    assert [future.get() for future in futures] == [[(0, n), (1, n)] for n in range(5)]
    assert group.first_only.start(7).get() == (0, 7)
    assert group.double.start(rows(3)).get().batch["y"].tolist() == [0, 2, 4]
    failing = group.breaks.start("typed")
    with pytest.raises(DataError):
        failing.get()


def test_peers_are_called_one_by_one(make_group, counter_class):
    async def ask(peers):
        return await asyncio.gather(*[peer.call("wait", 0.01, result="x") for peer in peers])

    peers = make_group(counter_class, world_size=3).peers()
    assert [peer.rank for peer in peers] == [0, 1, 2]
    assert asyncio.run(ask(peers)) == [(0, "x"), (1, "x"), (2, "x")]
    assert asyncio.run(peers[1].call("engine_step")) == "only the engine calls me"


def test_failures_of_peers_are_typed(make_group, counter_class):
    peer = make_group(counter_class).peers()[1]
    with pytest.raises(DataError, match=r"^bad row$"):
        asyncio.run(peer.call("wait", 0, DataError("bad row")))
    with pytest.raises(WorkerError, match=r"Counter.wait failed on rank 1 of 2: OSError: no such file"):
        asyncio.run(peer.call("wait", 0, OSError("no such file")))
    for method in ("zero", "private"):
        with pytest.raises(WorkerError, match=f"Counter.{method} is not for peers to call; register it with"):
            asyncio.run(peer.call(method, 1))


def test_a_failure_of_a_non_blocking_call_waits_for_get(make_group, counter_class):
    future = make_group(counter_class).later(None)
    with pytest.raises(WorkerError, match=r"Counter.later failed on rank 0 of 2: RuntimeError: nothing to do"):
        future.get()


def test_failures_are_typed_at_the_boundary(make_group, counter_class):
    group = make_group(counter_class)
    with pytest.raises(DataError, match=r"row 3 of train.parquet has no prompt"):
        group.breaks("typed")
    with pytest.raises(WorkerError, match=r"Counter.breaks failed on rank 0 of 2: KeyError: 'w_7'") as e:
        group.breaks("untyped")
    assert isinstance(e.value.__cause__, KeyError)


def test_failures_of_init(make_group, counter_class):
    with pytest.raises(WorkerError, match=r"Counter.__init__ failed on rank 0 of 2: OSError: no such file") as e:
        make_group(counter_class, fail=OSError("no such file"))
    assert isinstance(e.value.__cause__, OSError)
    with pytest.raises(DataError, match=r"^bad row$"):
        make_group(counter_class, fail=DataError("bad row"))


def test_only_registered_methods_are_bound(make_group, counter_class):
    group = make_group(counter_class)
    assert not hasattr(group, "private")
    with pytest.raises(
        AttributeError, match=r"'private' is not a registered method of Counter; registered are: apply,"
    ):
        group.private()


def test_an_override_keeps_the_mark_and_a_new_mark_replaces_it(make_group, counter_class):
    class Sub(counter_class):
        def zero(self, value):
            return "mine", *super().zero(value)

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def each(self, value, scale=1):
            return value

    group = make_group(Sub)
    assert group.zero(4) == ("mine", 0, 4)
    assert group.each("same") == ["same", "same"]


@pytest.mark.parametrize("name", ["world_size", "spawn"])
def test_a_method_with_the_name_of_the_groups_own_is_refused(make_group, name):
    class Clash(Worker):
        pass

    method = register()(lambda self: None)
    setattr(Clash, name, method)
    with pytest.raises(WorkerError, match=f"Clash.{name} has the name of a WorkerGroup's own; rename it"):
        make_group(Clash)
