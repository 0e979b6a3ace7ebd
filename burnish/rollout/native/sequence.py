"""One request on its way through the engine: its tokens, its blocks, and its row in the decode batch.

`History` keeps what was sampled, for all sequences at once, so that a step is written down with two array operations
and not token by token. The host knows of a token some steps after it was sampled on a GPU.
"""

from dataclasses import dataclass, field

import numpy as np

from burnish.ops.sampling import STOPS
from burnish.rollout.admission import RequestState


@dataclass(eq=False)
class Sequence:
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
    """Sampled tokens by slot. A slot is given back when no queued step can write to it any more."""

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
