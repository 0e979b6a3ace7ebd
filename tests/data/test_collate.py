import numpy as np
import pytest

from burnish.data.collate import collate


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
