"""Aggregation: the recorded results, and what must not count. Any cut of a mini-batch: test_policy_losses.py."""

import pytest
import torch

from burnish.algorithms.aggregate import LossCounts, aggregate
from burnish.config.actor import AGGREGATIONS
from burnish.errors import ConfigError
from tests.algorithms.helpers import assert_close, counts_of
from tests.recorded import each, golden

CASES = golden("agg_loss")
assert len(CASES) == 61
MODES = pytest.mark.parametrize("mode", AGGREGATIONS)


def number(value):
    return float(value) if isinstance(value, str) else value


@each([c for c in CASES if "raises" not in c["expected"]])
def test_golden(case):
    params, want = case["params"], case["expected"]
    losses = torch.tensor([[number(x) for x in row] for row in case["inputs"]["loss_mat"]], requires_grad=True)
    mask = torch.tensor(case["inputs"]["loss_mask"])
    length = params.get("loss_scale_factor") or mask.shape[1]  # the recorded batches are as wide as they can be
    share = aggregate(losses, mask, params["loss_agg_mode"], counts_of(params, mask), length)
    share = share * params.get("dp_size", 1)  # the reference corrects here for devices that average gradients
    share.backward()
    if "all_masked" in case["name"] or "nan_outside" in case["name"]:  # nan in the reference, in some or all modes
        assert torch.isfinite(share) and torch.isfinite(losses.grad).all()
        if number(want["loss"]) != number(want["loss"]):
            return
    assert_close(share.item(), number(want["loss"]))
    assert_close(losses.grad, [[number(x) for x in row] for row in want["grad_loss_mat"]])


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
