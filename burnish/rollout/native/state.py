"""What is known of the sequences that run: on the host `Sequence` and `History`, on the device the decode batch.

The host knows of a token some steps after it was sampled on a GPU: a step reads and writes `DecodeState` without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
import torch
from torch import Tensor

from burnish.ops.sampling import STOPS, DecodeRows
from burnish.rollout.admission import RequestState

CHANGED = ("ids", "positions", "left", "drawn", "out")  # what a step changes


@dataclass(eq=False)
class Sequence:
    """One request on its way through the engine: its tokens, its blocks, and its row in the decode batch."""

    request: RequestState
    prompt: np.ndarray  # (P,) int64
    place: tuple[tuple[int, ...], int]  # in the queue: what the caller asked for, then arrival
    slot: int = -1  # in the history, from its first admission on
    blocks: list[int] = field(default_factory=list)
    computed: int = 0  # tokens whose keys and values are in the pool, or will be when what is queued has run
    row: int | None = None  # in the decode batch, once all its tokens but the newest are computed
    under: list[int] = field(default_factory=list)  # versions of the tokens sampled before the weights last changed

    @property
    def watched(self) -> bool:
        """Whether the host must look at each of its tokens."""
        request = self.request
        return request.matcher is not None or request.on_token is not None or len(request.stop_ids) > STOPS


class History:
    """Sampled tokens by slot, written all at once. A slot is given back when no queued step writes to it any more."""

    def __init__(self) -> None:
        self.ids = np.empty((0, 0), dtype=np.int32)
        self.log_probs = np.empty((0, 0), dtype=np.float32)
        self.counts = np.zeros(0, dtype=np.int64)
        self._free: list[int] = []

    def take(self, limit: int) -> int:
        if limit > self.ids.shape[1]:
            self._enlarge(len(self.counts), limit)
        if not self._free:
            more = max(64, len(self.counts))
            self._free = list(range(len(self.counts) + more - 1, len(self.counts) - 1, -1))
            self._enlarge(len(self.counts) + more, self.ids.shape[1])
        slot = self._free.pop()
        self.counts[slot] = 0
        return slot

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    def append(self, slots: np.ndarray, ids: np.ndarray, log_probs: np.ndarray) -> None:
        """One more token for each of `slots` (n,)."""
        counts = self.counts[slots]
        self.ids[slots, counts] = ids
        self.log_probs[slots, counts] = log_probs
        self.counts[slots] = counts + 1

    def tokens(self, slot: int) -> np.ndarray:
        return self.ids[slot, : self.counts[slot]]

    def sampled(self, slot: int) -> tuple[list[int], list[float]]:
        return self.tokens(slot).tolist(), self.log_probs[slot, : self.counts[slot]].tolist()

    def _enlarge(self, slots: int, limit: int) -> None:
        for name in ("ids", "log_probs"):
            old = getattr(self, name)
            new = np.empty((slots, limit), dtype=old.dtype)
            used = int(self.counts.max(initial=0))
            new[: old.shape[0], :used] = old[:, :used]
            setattr(self, name, new)
        self.counts = np.pad(self.counts, (0, slots - len(self.counts)))


class DecodeState:
    """What each row is fed next, where its keys and values are, and how it is sampled: `rows` and `tables` of C rows;
    `first(n)` are views of the first n. The host changes rows between steps, by one small copy that is queued like all
    else."""

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

    def stop(self, rows: list[int]) -> None:
        if rows:
            self._idle(upload(self.device, np.asarray(rows))[0])

    def move(self, moves: list[tuple[int, int]]) -> None:
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

    def extend(self, grown: list[tuple[int, int, list[int]]]) -> None:
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
