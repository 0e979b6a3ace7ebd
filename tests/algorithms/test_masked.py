"""Masked sums, means, variance and whitening, against the recorded figures and with NaN outside the mask."""

import json
from pathlib import Path

import pytest
import torch

from burnish.algorithms.masked import masked_mean, masked_sum, masked_var, masked_whiten, zero_outside
from burnish.errors import BurnishError

CASES = json.loads((Path(__file__).parents[1] / "golden" / "masked_ops.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_golden(case, assert_close):
    values, mask = torch.tensor(case["inputs"]["values"]), torch.tensor(case["inputs"]["mask"])
    want = case["expected"]
    if "raises" in want:
        with pytest.raises(BurnishError, match=f"at least two policy tokens, and this batch has {int(mask.sum())}"):
            masked_whiten(values, mask)
        return
    assert_close(masked_sum(values, mask), want["masked_sum"])
    assert_close(masked_sum(values, mask, dim=-1), want["masked_sum_axis-1"])
    assert_close(masked_mean(values, mask), want["masked_mean"])
    assert_close(masked_mean(values, mask, dim=-1), want["masked_mean_axis-1"])
    assert_close(masked_var(values, mask), want["masked_var_unbiased"])
    assert_close(masked_var(values, mask, unbiased=False), want["masked_var_biased"])
    assert_close(masked_whiten(values, mask), want["masked_whiten"])
    assert_close(masked_whiten(values, mask, shift_mean=False), want["masked_whiten_keep_mean"])


def test_nan_outside_the_mask_reaches_neither_result_nor_gradient():
    values = torch.tensor([[1.0, float("nan"), 4.0]], requires_grad=True)
    mask = torch.tensor([[1, 0, 1]])
    assert zero_outside(values, mask).tolist() == [[1.0, 0.0, 4.0]]
    assert masked_mean(values, mask).item() == 2.5
    assert masked_var(values, mask).item() == 4.5
    masked_mean(values, mask).backward()
    assert values.grad is not None and values.grad.tolist() == [[0.5, 0.0, 0.5]]


def test_mean_of_an_empty_row_is_zero():
    assert masked_mean(torch.ones(2, 3), torch.tensor([[1, 0, 0], [0, 0, 0]]), dim=-1).tolist() == [1.0, 0.0]


def test_equal_values_are_whitened_to_exactly_zero():
    values = torch.full((7, 3), 0.3)  # 21 · 0.3 is not exact in float32
    assert not masked_whiten(values, torch.ones(7, 3)).any()
