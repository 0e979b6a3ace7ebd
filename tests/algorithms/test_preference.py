"""The Bradley–Terry loss against its formula, at differences where the formula itself would overflow, and ties."""

import math

import pytest
import torch

from burnish.algorithms.preference import agreement, bradley_terry

CHOSEN, REJECTED = torch.tensor([1.0, -0.5, 2.0, 0.0]), torch.tensor([0.0, 1.5, 2.0, -3.0])


@pytest.mark.parametrize("margin", [[0.0] * 4, [0.7] * 4, [-1.0, 0.5, 0.0, 2.0]], ids=str)
def test_it_is_the_formula_with_a_margin_for_each_pair(margin):
    loss = bradley_terry(CHOSEN, REJECTED, torch.tensor(margin))
    pairs = zip(CHOSEN.tolist(), REJECTED.tolist(), margin, strict=True)
    assert loss.tolist() == pytest.approx([math.log(1 + math.exp(-(c - r - m))) for c, r, m in pairs], abs=1e-6)


def test_large_differences_stay_finite_and_a_tie_is_half_right():
    chosen = torch.tensor([500.0, -500.0], requires_grad=True)
    loss = bradley_terry(chosen, torch.zeros(2), torch.zeros(2))
    assert loss.tolist() == [0.0, 500.0]
    loss.sum().backward()
    assert chosen.grad.tolist() == [0.0, -1.0]
    assert agreement(CHOSEN, REJECTED).tolist() == [1.0, 0.0, 0.5, 1.0]
