"""Masked sums, means, variance and whitening against the recorded results. NaN outside the mask: test_aggregate.py."""

import pytest
import torch

from burnish.algorithms.masked import masked_mean, masked_sum, masked_var, masked_whiten
from burnish.errors import BurnishError
from tests.algorithms.helpers import assert_close
from tests.recorded import each, golden

RECORDED, CASES = golden("masked_ops"), golden("masked_ops", function="masked_ops")
elsewhere = [case["params"]["function"] for case in RECORDED if case not in CASES]
assert len(CASES) == 11 and elsewhere == ["get_response_mask"] * 4  # those: tests/rollout/test_request.py


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


def test_empty_rows_and_values_that_hardly_differ():
    assert masked_mean(torch.ones(2, 3), torch.tensor([[1, 0, 0], [0, 0, 0]]), dim=-1).tolist() == [1.0, 0.0]
    values = torch.tensor([[0.0, 1e-4]])  # variance 5e-9, to which 1e-8 is added
    assert masked_whiten(values, torch.ones(1, 2))[0, 1].item() == pytest.approx(5e-5 / 1.5e-8**0.5, rel=1e-5)
    equal = torch.full((7, 3), 0.3)  # 21 · 0.3 is not exact in float32
    assert not masked_whiten(equal, torch.ones(7, 3)).any()
