"""Rows to a batch: `DataProto` with one object array per field, in the order of the rows.

Consumes rows of a dataset (and what the trainer added, such as `uid`); hands on a batch without tensors. A field that
only some rows have is None in the others. `collate_packed` is the same step for SFT: packed rows to padded tensors.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from burnish.data.files import Row, columns
from burnish.data.sft import PackedRow
from burnish.protocol import DataProto

NO_SEGMENT = -1


def collate(rows: Sequence[Row]) -> DataProto:
    """The rows as a batch of non-tensor fields."""
    if not rows:
        raise ValueError("collate needs at least one row")
    fields = {name: _objects([row.get(name) for row in rows]) for name in columns(rows)}
    return DataProto(batch=None, non_tensor_batch=fields, meta_info={})


def collate_packed(rows: Sequence[PackedRow], pad_token_id: int) -> DataProto:
    """Tensors (B, L), padded on the right: input_ids, attention_mask, position_ids, segment_ids, loss_mask.

    `attention_mask` marks tokens; that examples of a row do not attend to each other is in `segment_ids`, which is -1
    on padding.
    """
    if not rows:
        raise ValueError("collate_packed needs at least one row")
    columns = {
        "input_ids": _padded([row.ids for row in rows], pad_token_id),
        "attention_mask": _padded([np.ones_like(row.ids) for row in rows], 0),
        "position_ids": _padded([row.position_ids for row in rows], 0),
        "segment_ids": _padded([row.segment_ids for row in rows], NO_SEGMENT),
        "loss_mask": _padded([row.loss_mask for row in rows], 0),
    }
    return DataProto.from_dict(tensors=columns)


def _padded(arrays: Sequence[np.ndarray], fill: int) -> torch.Tensor:
    out = torch.full((len(arrays), max(map(len, arrays))), fill, dtype=torch.int64)  # (B, L)
    for i, array in enumerate(arrays):
        out[i, : len(array)] = torch.from_numpy(array)
    return out


def _objects(values: list[Any]) -> np.ndarray:
    # Filled one by one: np.array would turn equally long lists into a matrix.
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array
