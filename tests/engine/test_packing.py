import pytest
import torch

from burnish.engine.packing import pack


def test_sequences_are_concatenated_without_padding(batch, sequences):
    packed = pack(batch.batch)
    assert packed.input_ids.tolist() == [token for p, r in sequences for token in p + r]
    assert packed.lengths.tolist() == [len(p) + len(r) for p, r in sequences]
    assert packed.targets.tolist() == [token for _, r in sequences for token in r]


def test_padded_is_right_padded(make_batch, sequences):
    input_ids, attention_mask = pack(make_batch(sequences, pad=99).batch).padded()
    longest = max(len(p) + len(r) for p, r in sequences)
    for row, (p, r) in enumerate(sequences):
        n = len(p) + len(r)
        assert input_ids[row].tolist() == p + r + [0] * (longest - n)  # 0, whatever the batch was padded with
        assert attention_mask[row].tolist() == [1] * n + [0] * (longest - n)


def test_from_padded_undoes_padded(batch):
    packed = pack(batch.batch)
    assert packed.from_padded(packed.padded()[0]).equal(packed.input_ids)


def test_to_response_takes_the_position_before_each_token(batch, sequences):
    packed = pack(batch.batch)
    result = packed.to_response(torch.arange(1.0, len(packed.input_ids) + 1))  # 1 + packed index
    start = 0
    for row, (p, r) in enumerate(sequences):
        before_first = start + len(p)  # 1 + index of the prompt's last token
        expected = [float(before_first + t) for t in range(len(r))]
        assert result[row].tolist() == expected + [0.0] * (result.shape[1] - len(r))
        start += len(p) + len(r)


def test_gradients_flow_back_through_scatter(batch):
    packed = pack(batch.batch)
    values = torch.ones(len(packed.source), requires_grad=True)
    (packed.scatter(values) * 2).sum().backward()
    assert values.grad.tolist() == [2.0] * len(values)


def test_a_row_without_prompt_is_refused(batch):
    batch.batch["attention_mask"][3, : batch.batch["prompts"].shape[1]] = 0
    with pytest.raises(ValueError, match="row 3 has no prompt token"):
        pack(batch.batch)
