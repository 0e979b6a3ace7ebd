"""Steps: a mask's tokens as one vector and back, the next of each row, and discounted sums."""

import pytest
import torch

from burnish.algorithms.steps import Steps, discounted_sum_to_end

NAN = float("nan")
VALUES = torch.tensor([[1.0, NAN, 2.0, 3.0], [NAN, NAN, NAN, NAN], [NAN, 4.0, NAN, NAN]])
MASK = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_steps_are_taken_out_and_put_back(dtype):
    steps = Steps(MASK.to(dtype))
    taken = steps.take(VALUES)
    assert taken.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert steps.put(taken).tolist() == [[1.0, 0.0, 2.0, 3.0], [0.0] * 4, [0.0, 4.0, 0.0, 0.0]]


def test_a_row_ends_with_its_last_step_and_a_mask_may_have_none():
    steps = Steps(MASK)
    assert steps.following(steps.take(VALUES)).tolist() == [2.0, 3.0, 0.0, 0.0]
    assert steps.discounted_sum_to_end(steps.take(VALUES), 0.5).tolist() == [2.75, 3.5, 3.0, 4.0]
    steps = Steps(torch.zeros(2, 3))
    none = steps.take(torch.ones(2, 3))
    assert none.shape == steps.following(none).shape == steps.discounted_sum_to_end(none, 0.5).shape == (0,)
    assert steps.put(none).tolist() == [[0.0] * 3] * 2


def test_discounted_sum_to_the_end():
    assert discounted_sum_to_end(torch.tensor([[3.0]]), 0.5).tolist() == [[3.0]]
    assert discounted_sum_to_end(torch.ones(1, 5), 0.5).tolist() == [[1.9375, 1.875, 1.75, 1.5, 1.0]]
    assert discounted_sum_to_end(torch.ones(1, 3), 0.0).tolist() == [[1.0, 1.0, 1.0]]
    assert discounted_sum_to_end(torch.ones(2, 0), 0.5).shape == (2, 0)
