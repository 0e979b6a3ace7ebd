"""Masked sums and aggregation: recorded results, and what must not count. Any cut: test_policy_losses.py."""

import pytest
import torch

from burnish.algorithms.aggregate import LossCounts, aggregate
from burnish.algorithms.masked import masked_mean, masked_sum, masked_var, masked_whiten
from burnish.config.actor import AGGREGATIONS
from burnish.errors import BurnishError, ConfigError
from tests.algorithms.helpers import assert_close, counts_of
from tests.recorded import each, golden

CASES = golden("agg_loss")
assert len(CASES) == 61
MODES = pytest.mark.parametrize("mode", AGGREGATIONS)


@each([c for c in CASES if "raises" not in c["expected"]])
def test_golden(case):
    params, want = case["params"], case["expected"]
    losses = torch.tensor([[float(x) for x in row] for row in case["inputs"]["loss_mat"]], requires_grad=True)
    mask = torch.tensor(case["inputs"]["loss_mask"])
    length = params.get("loss_scale_factor") or mask.shape[1]  # the recorded batches are as wide as they can be
    share = aggregate(losses, mask, params["loss_agg_mode"], counts_of(params, mask), length)
    share = share * params.get("dp_size", 1)  # the reference corrects here for devices that average gradients
    share.backward()
    if "all_masked" in case["name"] or "nan_outside" in case["name"]:  # nan in the reference, in some or all modes
        assert torch.isfinite(share) and torch.isfinite(losses.grad).all()
        if float(want["loss"]) != float(want["loss"]):
            return
    assert_close(share.item(), float(want["loss"]))
    assert_close(losses.grad, [[float(x) for x in row] for row in want["grad_loss_mat"]])


@MODES
def test_what_is_outside_the_mask_does_not_leak(mode):
    losses = torch.tensor([[1.0, float("nan")], [2.0, 3.0]], requires_grad=True)
    mask = torch.tensor([[1, 0], [1, 1]])
    loss = aggregate(losses, mask, mode, LossCounts.of(mask), 4)
    clean = aggregate(losses.detach().nan_to_num(), mask, mode, LossCounts.of(mask), 4)
    loss.backward()
    assert loss.item() == clean.item() and losses.grad[0, 1] == 0
    losses.grad, nothing = None, torch.zeros(2, 2)
    loss = aggregate(losses, nothing, mode, LossCounts.of(nothing), 3)
    loss.backward()
    assert loss.item() == 0 and not losses.grad.any(), "nothing to train on is loss 0"


@MODES
def test_padding_to_a_wider_tensor_changes_nothing(mode):
    losses, mask = torch.arange(1.0, 7.0).view(2, 3), torch.tensor([[1, 1, 1], [1, 0, 0]])
    wider = [torch.nn.functional.pad(tensor, (0, 4)) for tensor in (losses, mask)]
    assert aggregate(losses, mask, mode, LossCounts.of(mask), 5) == aggregate(*wider, mode, LossCounts.of(wider[1]), 5)


def test_counts_and_unknown_modes():
    mask = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 0]])
    assert LossCounts.of(mask) == LossCounts(tokens=3, sequences=2), "rows without policy tokens do not count"
    with pytest.raises(ConfigError, match=r"loss_agg_mode=mean is unknown: there is token-mean, .*-norm"):
        aggregate(torch.ones(1, 1), torch.ones(1, 1), "mean", LossCounts(1, 1), 1)


RECORDED, MASKED = golden("masked_ops"), golden("masked_ops", function="masked_ops")
elsewhere = [case["params"]["function"] for case in RECORDED if case not in MASKED]
assert len(MASKED) == 11 and elsewhere == ["get_response_mask"] * 4  # those: tests/rollout/test_request.py


@each(MASKED)
def test_masked_golden(case):
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
