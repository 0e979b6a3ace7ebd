"""DataProto against the recorded results (golden/dataproto.json), then what they do not cover: errors, files, laws."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tensordict import TensorDict

from burnish.errors import CheckpointError, DataError
from burnish.protocol import (
    DataProto,
    fold_batch_dim,
    join_metrics,
    pad_dataproto_to_divisor,
    unfold_batch_dim,
    unpad_dataproto,
)

GOLDEN = json.loads((Path(__file__).parent / "golden" / "dataproto.json").read_text())
assert len(GOLDEN) == 79


def read_proto(recorded):
    tensors = {
        name: torch.tensor(column["data"], dtype=getattr(torch, column["dtype"]))
        for name, column in recorded.get("batch", {}).items()
    }
    return DataProto.from_dict(tensors, recorded.get("non_tensor_batch"), recorded.get("meta_info"))


def as_recorded(data):
    """A DataProto in the form of the recorded results."""
    tensors = {} if data.batch is None else {name: data.batch[name] for name in data.batch.keys()}  # noqa: SIM118
    return {
        "len": len(data),
        "batch": {
            name: {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape), "data": t.tolist()}
            for name, t in tensors.items()
        },
        "non_tensor_batch": {name: column.tolist() for name, column in data.non_tensor_batch.items()},
        "meta_info": data.meta_info,
    }


def run_golden(op, protos, params):
    """Do what a case asks for, and give the outcome in the form of its `expected`."""
    first = protos[0]
    match op:
        case "union":
            result = first.union(protos[1])
            return {"result": as_recorded(result), "same_object_as_self": result is first}
        case "fold":
            folded = fold_batch_dim(first, **params)
            assert same(unfold_batch_dim(folded), first)
            recorded = as_recorded(folded)
            tensors = {name: column["data"] for name, column in recorded["batch"].items()}
            return {"batch": tensors, "non_tensor_batch": recorded["non_tensor_batch"]}
        case "concat":
            return {"result": as_recorded(DataProto.concat(protos))}
        case "split" | "chunk" | "make_iterator":
            return {"results": [as_recorded(part) for part in getattr(first, op)(**params)]}
        case "reorder" | "padding":
            assert getattr(first, op)(**params) is None
            return {"result": as_recorded(first)}
        case "pad" | "pad_unpad":
            padded, pad_size = pad_dataproto_to_divisor(first, **params)
            result = unpad_dataproto(padded, pad_size) if op == "pad_unpad" else padded
            return {"result": as_recorded(result), "pad_size": pad_size}
        case "unpad":
            return {"result": as_recorded(unpad_dataproto(first, **params))}
        case "slice":
            return {"result": as_recorded(first.slice(params["start"], params["stop"], params["step"]))}
        case "pop":
            popped = first.pop(**params)
            return {"popped": as_recorded(popped), "remaining": as_recorded(first)}
        case "getitem_int":
            item = first[params["index"]]
            tensors = {name: item.batch[name].tolist() for name in item.batch.keys()}  # noqa: SIM118
            return {
                "result": {"batch": tensors, "non_tensor_batch": item.non_tensor_batch, "meta_info": item.meta_info}
            }
        case _:
            return {"result": as_recorded(getattr(first, op)(**params))}


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_golden(case):
    params = {name: value for name, value in case["params"].items() if name not in ("function", "op")}
    protos = [read_proto(recorded) for recorded in case["inputs"]["protos"]]
    if "raises" in case["expected"]:
        with pytest.raises((ValueError, KeyError)):
            run_golden(case["params"]["op"], protos, params)
    else:
        assert run_golden(case["params"]["op"], protos, params) == case["expected"]


@pytest.fixture
def batch():
    """Four rows with a matrix, a vector, two object columns and facts."""
    return DataProto.from_dict(
        {"ids": torch.arange(12).reshape(4, 3), "score": torch.tensor([0.5, 1.0, float("nan"), 2.0])},
        {"uid": [7, 7, 8, 8], "extra": [{"a": [1, 2]}, None, ("t", 1), "text"]},
        {"temperature": 0.7},
    )


def same(one, other):
    """Equal in columns, dtypes, values (NaN equals NaN) and facts."""
    return repr(as_recorded(one)) == repr(as_recorded(other))


def test_columns_from_lists_arrays_and_one_dict():
    data = DataProto.from_dict(non_tensors={"messages": [["a", "b"], ["c", "d"]], "k": np.array([1, 2])})
    assert data.non_tensor_batch["messages"].shape == (2,)
    assert data.non_tensor_batch["messages"].dtype == data.non_tensor_batch["k"].dtype == object
    assert data[1].non_tensor_batch == {"messages": ["c", "d"], "k": 2}
    data = DataProto.from_single_dict({"a": torch.zeros(2), "b": np.array(["x", "y"])}, {"t": 1})
    assert list(data.batch.keys()) == ["a"] and data.non_tensor_batch["b"].tolist() == ["x", "y"]
    assert data.meta_info == {"t": 1}
    plain = DataProto({"a": torch.zeros(2)}, None, None)
    assert len(plain) == 2 and plain.batch.batch_size == (2,) and plain.non_tensor_batch == plain.meta_info == {}
    assert len(DataProto(non_tensor_batch=None)) == 0


def test_tensordict_and_back(batch):
    whole = batch.to_tensordict()
    assert whole.batch_size == (4,)
    assert whole["uid"] == [7, 7, 8, 8]
    back = DataProto.from_tensordict(whole)
    assert same(back, batch)
    assert same(DataProto.from_tensordict(whole[1:3]), batch[1:3])
    only_objects = batch.select([])
    only_objects.batch = None
    assert DataProto.from_tensordict(only_objects.to_tensordict()).batch is None


def test_indexing(batch):
    assert repr(batch) == (
        "DataProto(4 rows; tensors: ids (4, 3) torch.int64, score (4,) torch.float32; others: uid, extra; "
        "meta: temperature)"
    )
    assert batch[np.int64(2)].non_tensor_batch["uid"] == 8
    assert batch[1:3].non_tensor_batch["uid"].tolist() == [7, 8]
    assert batch[::-1].batch["ids"][:, 0].tolist() == [9, 6, 3, 0]
    for rows in ([3, -4], np.array([3, 0]), torch.tensor([3, 0])):
        assert batch[rows].batch["ids"][:, 0].tolist() == [9, 0]
    for mask in ([True, False, False, True], np.array([1, 0, 0, 1], bool), torch.tensor([1, 0, 0, 1]).bool()):
        assert batch[mask].non_tensor_batch["uid"].tolist() == [7, 8]
    assert len(batch[[]]) == 0
    assert [item.non_tensor_batch["uid"] for item in batch] == [7, 7, 8, 8]


def test_what_changes_the_batch_itself(batch):
    assert batch.to("cpu") is batch and batch.batch["ids"].device.type == "cpu"
    assert DataProto(meta_info={"a": 1}).to("cpu").meta_info == {"a": 1}
    assert batch.rename(["ids", "score"], ["score", "ids"]) is batch  # it can swap
    assert batch.batch["score"].shape == (4, 3)
    batch.rename(["ids", "score"], ["score", "ids"])
    copy = DataProto.from_dict(
        {k: batch.batch[k].clone() for k in ("ids", "score")}, {"extra": list(batch.non_tensor_batch["extra"])}
    )
    assert batch.union(copy) is batch  # NaN equals NaN
    assert sorted(batch.batch.keys()) == ["ids", "score"]


def test_pop_does_not_reach_into_what_was_taken_before(batch):
    facts = batch.meta_info
    before = batch.select()
    batch.pop(["ids"], ["uid"], ["temperature"])
    assert facts == {"temperature": 0.7}
    assert list(before.batch.keys()) == ["ids", "score"]
    assert batch.pop().has_columns() is False


def test_a_batch_without_columns():
    data = DataProto(meta_info={"metrics": {"loss": 1.0}})
    assert len(data) == 0
    assert not data.has_columns()
    assert [part.meta_info for part in data.chunk(2)] == [data.meta_info] * 2
    assert DataProto.from_dict({"a": torch.zeros(2)}).union(data).meta_info == data.meta_info


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ([{"ids": torch.zeros(4, 3, dtype=torch.int64)}], "column 'ids'"),
        ([{"ids": torch.arange(12.0).reshape(4, 3)}], "column 'ids'"),
        ([{}, {"extra": [{"a": [1, 3]}, None, ("t", 1), "text"]}], "column 'extra'"),
        ([{"uid": torch.tensor([7, 7, 8, 8])}], "column 'uid'"),
        ([{}, {"ids": [0, 3, 6, 9]}], "column 'ids'"),
        ([{}, {}, {"temperature": torch.ones(2)}], "meta_info 'temperature'"),
        ([{}, {}, {"temperature": 1.0}], "meta_info 'temperature'"),
    ],
)
def test_a_union_that_conflicts_changes_nothing(batch, other, what):
    before, (tensors, *rest) = repr(as_recorded(batch)), other
    other = DataProto.from_dict({"new": torch.zeros(4), **tensors}, *rest)
    good = DataProto.from_dict({"first": torch.zeros(4)})
    for others in ([other], [good, other]):
        with pytest.raises(ValueError, match=f"{what} is in both batches with different values"):
            batch.union(*others)
    assert repr(as_recorded(batch)) == before
    assert batch.union(good, DataProto(meta_info={"k": 1})) is batch
    assert "first" in batch.batch.keys() and batch.meta_info == {"temperature": 0.7, "k": 1}  # noqa: SIM118


def test_slices_share_memory_and_selections_do_not(batch):
    batch[1:3].batch["ids"][:] = -1
    batch[[0, 3]].batch["ids"][:] = -2
    assert batch.batch["ids"][:, 0].tolist() == [0, -1, -1, 9]


def renamed_facts(batch):
    batch.meta_info["uid"] = 1
    batch.to_tensordict()


made = DataProto.from_dict
WIDER = made({"ids": torch.zeros(1, 5).long(), "score": torch.zeros(1)})
TWO = {"a": torch.zeros(2)}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda b: made({**TWO, "b": torch.zeros(3)}), ValueError,
            r"differ in their number of rows: \{'a': 2, 'b': 3\}",
        ),
        (lambda b: made(TWO, {"uid": [1, 2, 3]}), ValueError, "'uid' has 3 rows where the others have 2"),
        (lambda b: made(None, {"x": [1, 2], "y": [1]}), ValueError, "'y' has 1 rows where the others have 2"),
        (
            lambda b: DataProto(TensorDict({"a": torch.zeros(2, 3)}, batch_size=[2, 3])), ValueError,
            "one batch dimension",
        ),
        (lambda b: made({"a": [1, 2]}), TypeError, "'a' must be a tensor of shape .* not list"),
        (lambda b: made({"a": torch.tensor(1)}), TypeError, r"'a' .* not a tensor of shape \(\)"),
        (lambda b: made(non_tensors={"a": "abc"}), TypeError, "with an entry for each row, not str"),
        (
            lambda b: DataProto.from_single_dict({"a": [1]}), TypeError,
            "column 'a' must be a tensor or a numpy array, not list",
        ),
        (renamed_facts, ValueError, r"\['uid'\] are names of more than one kind"),
        (lambda b: b[4], IndexError, "row 4 of a batch of 4 rows"),
        (lambda b: b[[0, 9]], IndexError, "rows 0 to 9 of a batch of 4 rows"),
        (lambda b: b[[True, False]], ValueError, r"a mask of shape \(2,\) for 4 rows"),
        (lambda b: b[torch.tensor([0.0, 1.0])], TypeError, "a flat list of numbers or a mask, not torch.float32"),
        (lambda b: b.select(["nope"]), KeyError, r"batch has no \['nope'\]; it has \['ids', 'score'\]"),
        (lambda b: b.pop(non_tensor_batch_keys=["nope"]), KeyError, r"non_tensor_batch has no \['nope'\]"),
        (
            lambda b: b.select(meta_info_keys=["nope"]), KeyError,
            r"meta_info has no \['nope'\]; it has \['temperature'\]",
        ),
        (lambda b: b.rename("nope", "x"), KeyError, r"batch has no \['nope'\]"),
        (lambda b: b.rename("ids", "score"), ValueError, "two columns one name"),
        (lambda b: b.rename(["ids", "score"], ["a"]), ValueError, "as many new names as old ones"),
        (lambda b: b.chunk(3), ValueError, "4 rows do not divide into 3 chunks; set padding=True"),
        (lambda b: fold_batch_dim(b, 3), ValueError, "4 rows do not divide into 3"),
        (lambda b: b.unfold_column_chunks(2, ["ids"]), ValueError, r"'ids' of shape \(4, 3\) does not split into 2"),
        (lambda b: b.chunk(0), ValueError, "4 rows do not divide into 0 chunks"),
        (lambda b: b.split(0), ValueError, "split_size must be at least 1, not 0"),
        (lambda b: b.sample_level_repeat([1, 2]), ValueError, r"one count for each of the 4 rows, not \[1, 2\]"),
        (lambda b: b.sample_level_repeat([1, 2, -1, 1]), ValueError, "one count for each of the 4 rows"),
        (lambda b: b.make_iterator(3, 1), ValueError, "4 rows do not divide into mini-batches of 3"),
        (lambda b: b.make_iterator(2, 1, shuffle=True), ValueError, "needs a seed"),
        (lambda b: b[[]].padding(1), ValueError, "an empty batch has no row to pad with"),
        (lambda b: DataProto.concat([]), ValueError, "concat of no batches"),
        (lambda b: DataProto.concat([b, b.select(["ids"])]), ValueError, r"columns \['ids'\] where batch 0 has"),
        (
            lambda b: DataProto.concat([b, WIDER]), ValueError,
            r"column 'ids' is torch.int64 \(1, 5\) in batch 1 and torch.int64 \(4, 3\) in batch 0; bring both to one",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_at_once(batch, call, error, message):
    with pytest.raises(error, match=message):
        call(batch)


def test_a_seeded_iterator_repeats_itself_and_shuffles_each_epoch(batch):
    def order(seed, **arguments):
        parts = batch.make_iterator(2, 3, seed=seed, **arguments or {"shuffle": True})
        return [int(x) for part in parts for x in part.batch["ids"][:, 0]]

    assert order(5) == order(5, dataloader_kwargs={"shuffle": True})
    assert order(None, dataloader_kwargs={"shuffle": False}) == [0, 3, 6, 9] * 3
    assert order(5) == order(5) != order(6)
    epochs = [tuple(order(5)[i : i + 4]) for i in (0, 4, 8)]
    assert all(sorted(epoch) == [0, 3, 6, 9] for epoch in epochs)
    assert len(set(epochs)) > 1


def test_join_metrics_extends_lists_and_takes_keys_that_not_all_have():
    assert join_metrics([{"a": 1, "b": [2, 3]}, [{"a": [4]}, {"c": 5}], {}]) == {"a": [1, 4], "b": [2, 3], "c": [5]}


def test_disk_keeps_everything(tmp_path, batch):
    batch.batch["half"] = torch.randn(4, 2).to(torch.bfloat16)
    batch.batch["mask"] = torch.tensor([True, False, True, True])
    batch.batch["wide"] = torch.arange(4)[:, None].expand(4, 5)  # not contiguous
    batch.batch["again"] = batch.batch["ids"]  # shared memory
    batch.non_tensor_batch["odd"] = np.array(
        [np.float32(0.1), {"$tuple": 1, 3: "three"}, np.arange(6).reshape(2, 3), float("inf")], dtype=object
    )
    batch.meta_info |= {"metrics": {"loss": [1.0, 2.0]}, "names": np.array(["a", "bc"]), "nothing": None, "é": "\ud800"}
    batch.save_to_disk(tmp_path / "new" / "folder" / "b.safetensors")
    back = DataProto.load_from_disk(tmp_path / "new" / "folder" / "b.safetensors")

    assert [p.name for p in (tmp_path / "new" / "folder").iterdir()] == ["b.safetensors"]
    for name in batch.batch.keys():  # noqa: SIM118
        torch.testing.assert_close(back.batch[name], batch.batch[name], rtol=0, atol=0, equal_nan=True)
    assert back.non_tensor_batch["extra"].tolist() == [{"a": [1, 2]}, None, ("t", 1), "text"]
    number, mapping, array, inf = back.non_tensor_batch["odd"]
    assert number == float(np.float32(0.1)) and type(number) is float
    assert mapping == {"$tuple": 1, 3: "three"}
    assert array.dtype == np.int64 and array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert inf == float("inf")
    assert back.meta_info.pop("names").tolist() == batch.meta_info.pop("names").tolist() == ["a", "bc"]
    assert back.meta_info == batch.meta_info


@pytest.mark.parametrize(
    ("value", "kind"), [(object(), "object"), (b"png", "bytes"), (torch.zeros(1), "Tensor"), ({1, 2}, "set")]
)
def test_a_column_without_a_json_form_is_named(tmp_path, value, kind):
    data = DataProto.from_dict(non_tensors={"extra_info": [{}, {"image": [value]}]})
    with pytest.raises(DataError, match=rf"column 'extra_info'\[1\]\['image'\]\[0\] holds a {kind}, which has no JSON"):
        data.save_to_disk(tmp_path / "b")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match=rf"meta_info 'x' holds a {kind}"):
        DataProto(meta_info={"x": value}).save_to_disk(tmp_path / "b")


def test_files_that_cannot_be_read(tmp_path, batch):
    path = tmp_path / "b"
    with pytest.raises(CheckpointError, match=r"cannot read the batch .*/b: .*missing or truncated"):
        DataProto.load_from_disk(path)
    batch.save_to_disk(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match=r"cannot read the batch"):
        DataProto.load_from_disk(path)
    save_file({"w": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match=r"is not a batch written by DataProto.save_to_disk"):
        DataProto.load_from_disk(path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, batch, monkeypatch):
    path = tmp_path / "b"
    batch.save_to_disk(path)

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"cannot write the batch .*/b: .*No space left on device.*disk full"):
        batch[:2].save_to_disk(path)
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
    assert len(DataProto.load_from_disk(path)) == 4


few = settings(max_examples=40, deadline=None)


@st.composite
def batches(draw):
    count = draw(st.integers(0, 12))
    tensors = {
        name: torch.tensor(
            draw(st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), min_size=count, max_size=count)),
            dtype=draw(st.sampled_from([torch.int64, torch.float32, torch.bfloat16])),
        ).reshape(count, 2)
        for name in draw(st.sets(st.sampled_from(["a", "b", "c"])))
    }
    values = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
    names = draw(st.sets(st.sampled_from(["x", "y"])))
    columns = {name: draw(st.lists(values, min_size=count, max_size=count)) for name in names}
    return DataProto.from_dict(tensors, columns, draw(st.dictionaries(st.sampled_from("pq"), st.integers())))


@few
@given(batches(), st.integers(1, 20))
def test_concat_undoes_chunk_and_split_and_unpad_undoes_pad(data, n):
    padded, pad_size = pad_dataproto_to_divisor(data, n)
    assert same(DataProto.concat(padded.chunk(n)), padded)
    assert same(DataProto.concat(data.chunk(n, padding=True)), padded)
    assert len(padded) % n == 0 and 0 <= pad_size < n
    assert same(unpad_dataproto(padded, pad_size), data)
    if len(data):
        assert same(DataProto.concat(data.split(n)), data)


@few
@given(st.data())
def test_union_of_two_selections_is_the_whole(draw):
    data = draw.draw(batches())
    names = [] if data.batch is None else sorted(data.batch.keys())
    left = draw.draw(st.sets(st.sampled_from(names))) if names else set()
    whole = data.select(left, [], []).union(data.select(set(names) - left))
    assert as_recorded(whole) == as_recorded(data)


@few
@given(data=batches())
def test_disk_and_tensordict_are_the_identity(data, tmp_path_factory):
    assert same(DataProto.from_tensordict(data.to_tensordict()), data)
    path = tmp_path_factory.getbasetemp() / "law"
    data.save_to_disk(path)
    back = DataProto.load_from_disk(path)
    assert same(back, data) and (back.batch is None) == (data.batch is None)
