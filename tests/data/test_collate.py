import numpy as np
import pytest
import torch

from burnish.data.collate import collate, collate_packed
from burnish.data.sft import SFTExample, pack


def test_rows_become_object_columns():
    rows = [{"uid": 3, "raw_prompt": [{"role": "user"}], "extra": "x"}, {"uid": 4, "raw_prompt": [{"role": "user"}]}]
    batch = collate(rows)
    assert len(batch) == 2 and batch.batch is None
    assert set(batch.non_tensor_batch) == {"uid", "raw_prompt", "extra"}
    assert all(column.dtype == object and column.shape == (2,) for column in batch.non_tensor_batch.values())
    assert batch.non_tensor_batch["extra"].tolist() == ["x", None]
    assert batch.non_tensor_batch["raw_prompt"][1] == [{"role": "user"}]


def test_equally_long_lists_and_arrays_stay_values():
    batch = collate([{"a": [1, 2], "b": np.zeros(2)}, {"a": [3, 4], "b": np.ones(2)}])
    assert batch.non_tensor_batch["a"].tolist() == [[1, 2], [3, 4]]
    assert batch.non_tensor_batch["b"][1].tolist() == [1.0, 1.0]


def test_no_rows():
    with pytest.raises(ValueError, match="at least one row"):
        collate([])
    with pytest.raises(ValueError, match="at least one row"):
        collate_packed([], 0)


def test_packed_rows_become_padded_tensors():
    examples = [SFTExample(np.arange(1, n + 1), np.array([0] + [1] * (n - 1))) for n in (3, 2, 4)]
    batch = collate_packed(pack(examples, 5), pad_token_id=9).batch
    expected = {
        "input_ids": [[1, 2, 3, 4, 9], [1, 2, 3, 1, 2]],
        "attention_mask": [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]],
        "position_ids": [[0, 1, 2, 3, 0], [0, 1, 2, 0, 1]],
        "segment_ids": [[0, 0, 0, 0, -1], [0, 0, 0, 1, 1]],
        "loss_mask": [[0, 1, 1, 1, 0], [0, 1, 1, 0, 1]],
    }
    assert set(batch.keys()) == set(expected)
    for name, values in expected.items():
        assert torch.equal(batch[name], torch.tensor(values)), name
