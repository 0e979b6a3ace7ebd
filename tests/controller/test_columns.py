"""Values taken apart into bytes and the memory of tensors, and put together again."""

import gc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.controller.columns import Memo, flat, pack, unpack
from burnish.protocol import DataProto

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]


def through(value):
    """As it crosses: memory that cannot be written, as in an object store."""
    skeleton, tensors = pack(value)
    memory = [flat(tensor) for tensor in tensors]
    for array in memory:
        array.flags.writeable = False
    return unpack(skeleton, memory), memory


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


def test_views_send_only_their_own_rows():
    x = torch.arange(1000).reshape(100, 10)
    for view in (x[3:5], x[:, 2], x.T[1:2]):
        back, [memory] = through(view)
        assert torch.equal(back, view) and memory.nbytes == view.nbytes


def test_one_tensor_in_two_places_is_sent_once_and_stays_one():
    x = torch.ones(3)
    back, memory = through({"a": [x], "b": (x, x + 1)})
    assert len(memory) == 2
    assert back["a"][0] is back["b"][0]


def test_what_is_no_plain_tensor_keeps_its_kind():
    weight = torch.nn.Parameter(torch.ones(2))
    sparse = torch.eye(3).to_sparse()
    back, _ = through([weight, sparse, np.arange(3)])
    assert isinstance(back[0], torch.nn.Parameter) and back[1].is_sparse and back[2].tolist() == [0, 1, 2]


def test_reading_shared_memory_does_not_warn(recwarn):
    through(torch.ones(3))
    assert not recwarn.list


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


def test_the_memo_forgets_freed_tensors():
    memo = Memo(Made())
    for _ in range(10):
        memo(torch.zeros(3))
    gc.collect()
    assert not memo._made


def test_the_memo_does_not_keep_what_has_no_version():
    memo = Memo(Made())
    with torch.inference_mode():
        x = torch.zeros(3)
        assert memo(x) == 1
        x += 1
        assert memo(x) == 2


def test_what_has_no_pickle_is_refused():
    with pytest.raises((TypeError, AttributeError)):
        pack(lambda: None)
