"""From the padded columns of a batch to a `PackedBatch`: all tokens of all sequences in one line, with their places.

Notation: B sequences, R response width, T tokens in all, N response tokens in all.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from burnish.ops.varlen_attention import Sequences


@dataclass(frozen=True)
class PackedBatch:
    input_ids: Tensor  # (T,)
    positions: Tensor  # (T,) of each token in its sequence
    sequences: Sequences
    source: Tensor  # (N,) the place before each response token: what predicts it
    present: Tensor  # (B, R) bool: the response token exists; N of them are true, in the order of `source`

    @property
    def targets(self) -> Tensor:  # (N,)
        return self.input_ids[self.source + 1]

    def scatter(self, values: Tensor) -> Tensor:
        """A value per response token (N,) as (B, R); 0 where there is no token."""
        return values.new_zeros(self.present.shape).masked_scatter(self.present, values)


def pack(batch: Mapping[str, Tensor]) -> PackedBatch:
    """Pack the rows of `input_ids` (B, P+R) where `attention_mask` is 1; `responses` (B, R) gives the split."""
    attention = batch["attention_mask"].bool()  # (B, P+R)
    present = attention[:, attention.shape[1] - batch["responses"].shape[1] :]  # (B, R)
    lengths = attention.sum(-1)
    if bool((lengths - present.sum(-1) < 1).any()):
        row = int((lengths - present.sum(-1) < 1).nonzero()[0])
        raise ValueError(f"row {row} has no prompt token: its first response token has no prefix to be predicted from")
    ends = attention.flatten().cumsum(0).view_as(attention)  # (B, P+R), 1 + the packed index of each real token
    source = ends[:, -present.shape[1] :][present] - 2 if present.shape[1] else ends.new_zeros(0)
    return PackedBatch(*pack_rows(batch["input_ids"], attention), source=source, present=present)


def pack_rows(input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor, Sequences]:
    """Ids and positions (T,) of whole rows (B, L) where the mask is 1, and where each row is. Every row has some."""
    real = attention_mask.bool()
    positions = (real.cumsum(-1) - 1)[real]
    return input_ids[real], positions, Sequences.of(real.sum(-1).tolist(), input_ids.device)
