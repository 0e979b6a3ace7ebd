"""The decode batch on the device: what each row is fed next, where its keys and values are, and how it is sampled.

A step reads and writes this state without the host. The host changes it between steps, here: rows are filled, stopped,
moved, and given blocks. Each change is one small copy and a few index operations, queued like everything else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from burnish.ops.sampling import STOPS, DecodeRows

CHANGED = ("ids", "positions", "left", "drawn", "out")  # what a step changes


class DecodeState:
    """`rows` and `tables` of C rows; `first(n)` are views of the first n."""

    def __init__(self, capacity: int, columns: int, device: torch.device):
        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape or (capacity,), dtype=dtype, device=device)

        self.device = device
        self.rows = DecodeRows(
            **{name: zeros(torch.long) for name in ("ids", "positions", "drawn", "seeds")},
            **{name: zeros(torch.int32) for name in ("left", "top_k")},
            **{name: zeros(torch.float32) for name in ("temperature", "min_p")},
            top_p=zeros(torch.float32) + 1,
            stops=zeros(torch.long, capacity, STOPS) - 1,
            out=zeros(torch.float32, 3, capacity),
        )
        self.tables = zeros(torch.int32, capacity, columns)  # (C, M)

    def first(self, count: int) -> tuple[DecodeRows, Tensor]:
        rows = {item.name: getattr(self.rows, item.name)[:count] for item in fields(DecodeRows) if item.name != "out"}
        return DecodeRows(**rows, out=self.rows.out), self.tables[:count]

    def fill(
        self, rows: np.ndarray, tables: np.ndarray, whole: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray]
    ) -> Tensor:
        """Take over rows (n,) with their tables (n, m) and the columns of `DecodeRows` by name, `whole` ones as int64
        and `real` ones as float32; their indices (n,) on the device."""
        index, blocks, *integers = upload(self.device, rows, tables, *whole.values())
        columns = [*integers, *upload(self.device, *real.values())]
        for name, values in zip([*whole, *real], columns, strict=True):
            column = getattr(self.rows, name)
            column[index] = values.to(column.dtype)
        self.tables[index, : blocks.shape[1]] = blocks.int()
        return index

    def stop(self, rows: Sequence[int]) -> None:
        if rows:
            self._idle(upload(self.device, np.asarray(rows))[0])

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Rows to other places; where they were is idle."""
        if not moves:
            return
        sources, targets = upload(self.device, *np.asarray(moves).T)
        for item in fields(DecodeRows):
            if item.name != "out":
                values = getattr(self.rows, item.name)
                values[targets] = values[sources]
        self.tables[targets] = self.tables[sources]
        self._idle(sources)

    def _idle(self, rows: Tensor) -> None:
        self.rows.left.index_fill_(0, rows, 0)  # an assignment would copy the 0 to the device, and wait for that

    def extend(self, grown: Sequence[tuple[int, int, list[int]]]) -> None:
        """Write blocks into tables, each list from its column on."""
        if not grown:
            return
        places = [(row, column + i, block) for row, column, blocks in grown for i, block in enumerate(blocks)]
        rows, columns, blocks = upload(self.device, *np.asarray(places).T)
        self.tables[rows, columns] = blocks.int()

    def saved(self) -> list[Tensor]:
        return [getattr(self.rows, name).clone() for name in CHANGED]

    def restore(self, saved: list[Tensor]) -> None:
        for name, old in zip(CHANGED, saved, strict=True):
            getattr(self.rows, name).copy_(old)


def upload(device: torch.device, *arrays: np.ndarray) -> list[Tensor]:
    """Arrays of one type to the device in one copy that the host does not wait for."""
    flat = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
    if device.type == "cuda":
        flat = flat.pin_memory().to(device, non_blocking=True)
    parts = flat.split([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
