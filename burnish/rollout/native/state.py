"""The decode batch on the device: what each row is fed next, where its keys and values are, and how it is sampled.

A step reads and writes this state without the host. The host changes it between steps, here: rows are filled, stopped,
moved, and given blocks. Each change is one small copy and a few index operations, queued like everything else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from burnish.ops.sampling import STOPS, DecodeRows


@dataclass(frozen=True)
class NewRows:
    """Rows to fill (n of them), as host arrays."""

    rows: np.ndarray  # (n,) int64
    positions: np.ndarray  # (n,) int64: of the token before the one that is sampled first
    left: np.ndarray  # (n,) int64
    drawn: np.ndarray  # (n,) int64
    seeds: np.ndarray  # (n,) int64
    temperature: np.ndarray  # (n,) float32
    top_k: np.ndarray  # (n,) int64
    top_p: np.ndarray  # (n,) float32
    min_p: np.ndarray  # (n,) float32
    stops: np.ndarray  # (n, STOPS) int64
    tables: np.ndarray  # (n, m) int64


class DecodeState:
    """`rows` and `tables` of C rows; `first(n)` are views of the first n."""

    def __init__(self, capacity: int, columns: int, device: torch.device):
        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.device = device
        self.rows = DecodeRows(
            ids=zeros(capacity),
            positions=zeros(capacity),
            left=zeros(capacity, dtype=torch.int32),
            drawn=zeros(capacity),
            seeds=zeros(capacity),
            temperature=zeros(capacity, dtype=torch.float32),
            top_k=zeros(capacity, dtype=torch.int32),
            top_p=zeros(capacity, dtype=torch.float32) + 1,
            min_p=zeros(capacity, dtype=torch.float32),
            stops=zeros(capacity, STOPS) - 1,
            out=zeros(3, capacity, dtype=torch.float32),
        )
        self.tables = zeros(capacity, columns, dtype=torch.int32)  # (C, M)

    def first(self, count: int) -> tuple[DecodeRows, Tensor]:
        rows = {item.name: getattr(self.rows, item.name)[:count] for item in fields(DecodeRows) if item.name != "out"}
        return DecodeRows(**rows, out=self.rows.out), self.tables[:count]

    def fill(self, new: NewRows) -> Tensor:
        """Take over new rows; their indices (n,) on the device."""
        index, positions, left, drawn, seeds, top_k, stops, tables = upload(
            self.device, new.rows, new.positions, new.left, new.drawn, new.seeds, new.top_k, new.stops, new.tables
        )
        temperature, top_p, min_p = upload(self.device, new.temperature, new.top_p, new.min_p)
        rows = self.rows
        rows.positions[index], rows.left[index], rows.drawn[index] = positions, left.int(), drawn
        rows.seeds[index], rows.stops[index] = seeds, stops
        rows.temperature[index], rows.top_k[index] = temperature, top_k.int()
        rows.top_p[index], rows.min_p[index] = top_p, min_p
        self.tables[index, : tables.shape[1]] = tables.int()
        return index

    def stop(self, rows: Sequence[int]) -> None:
        if len(rows):
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
        """A copy of what a step changes."""
        rows = self.rows
        return [values.clone() for values in (rows.ids, rows.positions, rows.left, rows.drawn, rows.out)]

    def restore(self, saved: list[Tensor]) -> None:
        rows = self.rows
        for values, old in zip((rows.ids, rows.positions, rows.left, rows.drawn, rows.out), saved, strict=True):
            values.copy_(old)


def upload(device: torch.device, *arrays: np.ndarray) -> list[Tensor]:
    """Arrays of one type to the device in one copy that the host does not wait for."""
    flat = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
    if device.type == "cuda":
        flat = flat.pin_memory().to(device, non_blocking=True)
    parts = flat.split([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
