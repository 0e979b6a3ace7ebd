import pytest
import torch

from burnish.engine.packing import pack, pack_rows


def test_sequences_are_concatenated_without_padding(batch, sequences):
    packed = pack(batch.batch)
    assert packed.input_ids.tolist() == [token for p, r in sequences for token in p + r]
    assert list(packed.sequences.lengths) == [len(p) + len(r) for p, r in sequences]
    assert packed.positions.tolist() == [place for p, r in sequences for place in range(len(p) + len(r))]
    assert packed.targets.tolist() == [token for _, r in sequences for token in r]


def test_positions_skip_masked_places_inside_a_row(batch):
    """Also between turns: a token's position is the number of real tokens before it, wherever padding lies."""
    batch.batch["attention_mask"][0, 3:5] = 0  # among the prompt and before the response
    packed = pack(batch.batch)
    length = packed.sequences.lengths[0]
    assert packed.positions[:length].tolist() == list(range(length))
    row, real = batch.batch["input_ids"][0], batch.batch["attention_mask"][0] == 1
    assert packed.input_ids[:length].tolist() == row[real].tolist()


def test_whole_rows_are_packed_where_their_mask_is_1():
    ids, positions, sequences = pack_rows(torch.tensor([[5, 6, 7], [8, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]]))
    assert (ids.tolist(), positions.tolist(), sequences.starts.tolist()) == ([5, 6, 7, 8], [0, 1, 2, 0], [0, 3, 4])


def test_each_token_is_predicted_from_the_place_before_it(batch, sequences):
    packed = pack(batch.batch)
    result = packed.scatter(torch.arange(1.0, len(packed.input_ids) + 1)[packed.source])  # 1 + packed index
    start = 0
    for row, (p, r) in enumerate(sequences):
        before_first = start + len(p)  # 1 + index of the prompt's last token
        expected = [float(before_first + t) for t in range(len(r))]
        assert result[row].tolist() == expected + [0.0] * (result.shape[1] - len(r))
        start += len(p) + len(r)
    values = torch.ones(len(packed.source), requires_grad=True)
    (packed.scatter(values) * 2).sum().backward()
    assert values.grad.tolist() == [2.0] * len(values)


def test_a_row_without_prompt_is_refused(batch):
    batch.batch["attention_mask"][3, : batch.batch["prompts"].shape[1]] = 0
    with pytest.raises(ValueError, match="row 3 has no prompt token"):
        pack(batch.batch)
