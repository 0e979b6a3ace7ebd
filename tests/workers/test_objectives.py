"""What is in the policy's loss, and which rows an update needs."""

import torch

from burnish.protocol import DataProto
from burnish.workers.objectives import loss_mask, rows_with_gradient


def batch(advantages, mask, kept=None):
    columns = {"advantages": torch.tensor(advantages), "response_mask": torch.tensor(mask)}
    columns["attention_mask"] = torch.ones(len(mask), 5, dtype=torch.long)
    if kept is not None:
        columns["loss_mask"] = torch.tensor(kept)
    return DataProto.from_dict(columns)


def test_rows_are_needed_for_an_advantage_that_counts():
    # A padding row repeats another, the correction's mask included; only its response_mask says that it is none.
    padded = batch([[1.0, 1.0], [1.0, 1.0]], [[1, 1], [0, 0]], kept=[[1, 0], [1, 0]])
    assert loss_mask(padded).tolist() == [[1, 0], [0, 0]]
    assert rows_with_gradient(padded).tolist() == [True, False]
    assert rows_with_gradient(batch([[0.0, 2.0], [0.0, 2.0]], [[1, 1], [1, 0]])).tolist() == [True, False]
    flat = batch([[0.0, 0.0], [0.0, 0.0]], [[1, 1], [1, 0]])
    flat.batch["attention_mask"][1, -1] = 0
    assert rows_with_gradient(flat).tolist() == [False, True], "without any advantage the shortest row is left"
