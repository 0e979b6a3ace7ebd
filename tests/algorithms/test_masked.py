"""Masked sums, means, variance and whitening, against the recorded results and with NaN outside the mask."""

import math
from itertools import permutations

import pytest
import torch

from burnish.algorithms.masked import masked_mean, masked_sum, masked_var, masked_whiten, zero_outside
from burnish.errors import BurnishError
from tests.algorithms.helpers import assert_close
from tests.recorded import each, golden

RECORDED, CASES = golden("masked_ops"), golden("masked_ops", function="masked_ops")
elsewhere = [case["params"]["function"] for case in RECORDED if case not in CASES]
assert len(CASES) == 11 and elsewhere == ["get_response_mask"] * 4  # those: tests/rollout/test_request.py


SPECIAL = [3.0, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize(("got", "want"), [*permutations(SPECIAL, 2)])
def test_the_tolerance_takes_infinities_and_nan_exactly(got, want):
    assert_close([*SPECIAL, got], [*SPECIAL, got])
    with pytest.raises(AssertionError):
        assert_close([*SPECIAL, got], [*SPECIAL, want])


@each(CASES)
def test_golden(case):
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


def test_empty_rows_and_values_that_hardly_differ():
    assert masked_mean(torch.ones(2, 3), torch.tensor([[1, 0, 0], [0, 0, 0]]), dim=-1).tolist() == [1.0, 0.0]
    values = torch.tensor([[0.0, 1e-4]])  # variance 5e-9, to which 1e-8 is added
    assert masked_whiten(values, torch.ones(1, 2))[0, 1].item() == pytest.approx(5e-5 / 1.5e-8**0.5, rel=1e-5)
    equal = torch.full((7, 3), 0.3)  # 21 · 0.3 is not exact in float32
    assert not masked_whiten(equal, torch.ones(7, 3)).any()
