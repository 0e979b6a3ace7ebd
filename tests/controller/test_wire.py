"""Values taken apart into bytes and the memory of tensors, and put together again; and errors on their way."""

import gc
import pickle
import threading

import numpy as np
import pytest
import torch
import torch.distributed
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.controller.wire import Memo, Weight, carry, flat, pack, restore, unpack
from burnish.controller.worker import WorkerPlace, typed_failures
from burnish.errors import BurnishError, DataError, NotAvailable, WorkerDied, WorkerError
from burnish.protocol import DataProto

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]


def through(value):
    """As it crosses: memory that cannot be written, as in an object store."""
    skeleton, tensors = pack(value)
    memory = [flat(tensor) for tensor in tensors]
    for array in memory:
        array.flags.writeable = False
    return unpack(skeleton, memory), memory


@pytest.mark.filterwarnings("error")  # of memory that cannot be written
@settings(deadline=None)
@given(dtype=st.sampled_from(DTYPES), shape=st.lists(st.integers(0, 4), max_size=3), seed=st.integers(0, 99))
def test_every_tensor_comes_back(dtype, shape, seed):
    torch.manual_seed(seed)
    tensor = (torch.randn(shape) * 3).to(dtype)
    back, _ = through(tensor)
    assert back.dtype == dtype and back.shape == tensor.shape and torch.equal(back, tensor)


def test_a_batch_comes_back_over_the_same_memory():
    x = torch.arange(12.0).reshape(4, 3)
    data = DataProto.from_dict({"x": x, "empty": torch.zeros(4, 0)}, {"uid": ["a", {"b": 1}, None, 4]}, {"t": 0.5})
    back, memory = through(data)
    assert back.batch["x"].data_ptr() == x.data_ptr()  # `flat` did not copy either
    assert torch.equal(back.batch["x"], x) and back.batch["empty"].shape == (4, 0)
    assert back.non_tensor_batch["uid"].tolist() == ["a", {"b": 1}, None, 4]
    assert back.meta_info == {"t": 0.5}
    assert sum(array.nbytes for array in memory) == x.nbytes


def test_views_send_only_their_own_rows_and_one_tensor_in_two_places_is_sent_once():
    x = torch.arange(1000).reshape(100, 10)
    for view in (x[3:5], x[:, 2], x.T[1:2]):
        back, [memory] = through(view)
        assert torch.equal(back, view) and memory.nbytes == view.nbytes
    back, memory = through({"a": [x], "b": (x, x + 1)})
    assert len(memory) == 2 and back["a"][0] is back["b"][0], "and stays one"


def test_what_is_no_plain_tensor_keeps_its_kind():
    weight = torch.nn.Parameter(torch.ones(2))
    sparse = torch.eye(3).to_sparse()
    back, _ = through([weight, sparse, np.arange(3)])
    assert isinstance(back[0], torch.nn.Parameter) and back[1].is_sparse and back[2].tolist() == [0, 1, 2]
    with pytest.raises((TypeError, AttributeError)):
        pack(lambda: None)  # has no pickle


class Made:
    def __init__(self):
        self.tensors = []

    def __call__(self, tensor):
        self.tensors.append(tensor.clone())
        return len(self.tensors)


def test_the_memo_makes_once_until_the_tensor_changes():
    memo, x = Memo(made := Made()), torch.zeros(3)
    assert [memo(x), memo(x)] == [1, 1]
    x += 1
    assert [memo(x), memo(x)] == [2, 2]
    x[:1].mul_(5)  # through a view
    assert memo(x) == 3
    assert made.tensors[-1].tolist() == [5, 1, 1]


def test_the_memo_forgets_freed_tensors_and_does_not_keep_what_has_no_version():
    memo = Memo(Made())
    for _ in range(10):
        memo(torch.zeros(3))
    gc.collect()
    assert not memo._made
    memo = Memo(Made())
    with torch.inference_mode():
        x = torch.zeros(3)
        assert memo(x) == 1
        x += 1
        assert memo(x) == 2


class Odd(DataError):
    def __init__(self, row, *, file):
        super().__init__(f"row {row} of {file}")
        self.row = row


def carried(error):
    return restore(pickle.loads(pickle.dumps(carry(error))))  # noqa: S301 (our own)


def untyped(cause):
    with pytest.raises(WorkerError) as e, typed_failures(object, "m", WorkerPlace()):
        raise cause
    return e.value


def died(cause):
    error = WorkerDied("rank 1, pid 7, died")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("error", [DataError("row 3"), NotAvailable("flying", "walk"), Odd(3, file="a")])
def test_deliberate_errors_arrive_as_themselves(error):
    back = carried(error)
    assert type(back) is type(error) and str(back) == str(error) and vars(back) == vars(error)
    assert back.__cause__ is None


def test_an_error_that_cannot_be_made_again_arrives_as_the_nearest_known():
    class Local(DataError):
        pass

    class Wordless(DataError):
        def __str__(self):
            raise ValueError("no words")

    error = Odd(3, file="a")
    error.lock = threading.Lock()  # which has no pickle
    no_words = "(its text cannot be shown: __str__ raised ValueError)"
    for sent, text in ((Local("row 3"), "row 3"), (error, "row 3 of a"), (Wordless("x"), no_words)):
        back = carried(sent)
        assert type(back) is DataError and str(back) == text


def test_the_cause_comes_along_with_its_traceback_or_as_text():
    class Strange(Exception):  # which has no pickle
        pass

    try:
        {}["w_7"]
    except KeyError as cause:
        back = carried(untyped(cause))
    assert str(back) == "object.m failed on rank 0 of 1: KeyError: 'w_7'"
    assert isinstance(back.__cause__, KeyError) and back.__cause__.args == ("w_7",)
    assert '{}["w_7"]' in back.__cause__.__notes__[0]
    back = carried(untyped(Strange("thing")))
    assert isinstance(back.__cause__, RuntimeError) and str(back.__cause__).endswith("Strange: thing")


@pytest.mark.parametrize(
    ("error", "weight"),
    [
        (DataError("x"), Weight.TYPED),
        (WorkerError("said on purpose"), Weight.TYPED),
        (untyped(KeyError("x")), Weight.UNTYPED),
        (untyped(ConnectionError("reset by peer")), Weight.UNTYPED),  # a tool's, say; collectives raise RuntimeErrors
        (untyped(RuntimeError("[gloo/tcp/pair.cc:1] Connection closed by peer [10.0.0.1]:7")), Weight.BROKEN),
        (untyped(torch.distributed.DistBackendError("NCCL error")), Weight.BROKEN),
        (died(RuntimeError("nccl: connection reset by peer")), Weight.DIED),  # wherever it is reported
    ],
)
def test_the_reason_weighs_more_than_its_consequences(error, weight):
    assert carry(error).weight is weight
    assert Weight.DIED < Weight.TYPED < Weight.UNTYPED < Weight.BROKEN
    assert type(carried(error)) is type(error)


def test_every_error_of_the_model_can_be_carried():
    def below(cls):
        yield cls
        for sub in cls.__subclasses__():
            yield from below(sub)

    for cls in below(BurnishError):
        if cls.__module__ == "burnish.errors":
            assert type(carried(cls("text"))) is cls
