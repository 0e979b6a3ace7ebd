"""Places in a packed line. That it has the values of each sequence alone: test_forward.py."""

import pytest
import torch

from burnish.engine.packing import pack, pack_rows


def test_positions_skip_masked_places_inside_a_row_and_a_row_without_a_prompt_is_refused(batch):
    """Also between turns: a token's position is the number of real tokens before it, wherever padding lies."""
    batch.batch["attention_mask"][0, 3:5] = 0  # among the prompt and before the response
    packed = pack(batch.batch)
    length = packed.sequences.lengths[0]
    assert packed.positions[:length].tolist() == list(range(length))
    row, real = batch.batch["input_ids"][0], batch.batch["attention_mask"][0] == 1
    assert packed.input_ids[:length].tolist() == row[real].tolist()
    ids, positions, sequences = pack_rows(torch.tensor([[5, 6, 7], [8, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]]))
    assert (ids.tolist(), positions.tolist(), sequences.starts.tolist()) == ([5, 6, 7, 8], [0, 1, 2, 0], [0, 3, 4])
    batch.batch["attention_mask"][3, : batch.batch["prompts"].shape[1]] = 0
    with pytest.raises(ValueError, match="row 3 has no prompt token"):
        pack(batch.batch)
