"""Sequences without padding: what every engine call takes.

Consumes the padded columns of a batch (prompts left-padded, responses right-padded) and hands on a `Packed`: all
tokens of all sequences in one line, with the sequences' lengths. `Packed.to_response` brings a figure per
token back to the batch's (B, R) shape.

Notation: B sequences, R response width, T tokens in all, L the longest sequence, N response tokens in all.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packed:
    """B sequences in one line of T tokens."""

    input_ids: Tensor  # (T,)
    lengths: Tensor  # (B,) of the sequences, in the order of the line
    source: Tensor  # (N,) the position before each response token: what predicts it
    present: Tensor  # (B, R) bool: the response token exists; N of them are true, in the order of `source`

    @property
    def targets(self) -> Tensor:  # (N,)
        """The response tokens themselves."""
        return self.input_ids[self.source + 1]

    def padded(self) -> tuple[Tensor, Tensor]:
        """Right-padded ids and attention mask, both (B, L), for a plain HF call.

        Padding is masked, so its id means nothing; 0 is one that every vocabulary has.
        """
        real = self._real()
        input_ids = self.input_ids.new_zeros(real.shape)
        input_ids[real] = self.input_ids
        return input_ids, real.long()

    def from_padded(self, values: Tensor) -> Tensor:
        """Of (B, L, …), what belongs to real tokens: (T, …)."""
        return values[self._real()]

    def to_response(self, values: Tensor) -> Tensor:
        """Of a figure per token (T,), the one before each response token, as (B, R); 0 where there is no token."""
        return self.scatter(values[self.source])

    def scatter(self, values: Tensor) -> Tensor:
        """A figure per response token (N,) as (B, R); 0 where there is no token."""
        return values.new_zeros(self.present.shape).masked_scatter(self.present, values)

    def _real(self) -> Tensor:  # (B, L)
        columns = torch.arange(int(self.lengths.max()), device=self.input_ids.device)
        return columns < self.lengths[:, None]


def pack(batch: Mapping[str, Tensor]) -> Packed:
    """Pack the rows of `input_ids` (B, P+R) where `attention_mask` is 1; `responses` (B, R) gives the split."""
    attention = batch["attention_mask"].bool()  # (B, P+R)
    present = attention[:, attention.shape[1] - batch["responses"].shape[1] :]  # (B, R)
    lengths = attention.sum(-1)
    if bool((lengths - present.sum(-1) < 1).any()):
        row = int((lengths - present.sum(-1) < 1).nonzero()[0])
        raise ValueError(f"row {row} has no prompt token: its first response token has no prefix to be predicted from")
    ends = attention.flatten().cumsum(0).view_as(attention)  # (B, P+R), 1 + the packed index of each real token
    return Packed(
        input_ids=batch["input_ids"][attention],
        lengths=lengths,
        source=ends[:, -present.shape[1] :][present] - 2 if present.shape[1] else ends.new_zeros(0),
        present=present,
    )
