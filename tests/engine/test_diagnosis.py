"""What is named where something is not finite: weights, gradients, the first module, the first token."""

import math

import pytest
import torch

from burnish.config.optim import OptimConfig
from burnish.engine import diagnosis
from burnish.engine.trainable import Trainable

LAYER = "model.layers.1.mlp.down_proj"
IDS = torch.tensor([[5, 6, 7]])


def test_a_weight_and_the_first_module_that_meets_it_are_named(causal_lm):
    assert diagnosis.bad_weights(causal_lm) == []
    assert diagnosis.first_bad_module(causal_lm, lambda: causal_lm(input_ids=IDS)) is None
    with torch.no_grad():
        causal_lm.get_submodule(LAYER).weight[0, 0] = math.inf
    assert diagnosis.bad_weights(causal_lm) == [f"{LAYER}.weight"]
    assert diagnosis.first_bad_module(causal_lm, lambda: causal_lm(input_ids=IDS)) == LAYER
    assert diagnosis.bad_weights(causal_lm.requires_grad_(False)) == [f"{LAYER}.weight"], "frozen ones too"
    with pytest.raises(ZeroDivisionError):
        diagnosis.first_bad_module(causal_lm, lambda: 1 / 0)
    assert not any(part._forward_hooks for part in causal_lm.modules())


def test_gradients_and_their_norm(causal_lm):
    trainable = Trainable(causal_lm, OptimConfig(), total_steps=1)
    assert diagnosis.grad_norm(trainable) == 0 and diagnosis.bad_gradients(trainable) == []
    for name, parameter in trainable.masters.items():
        trainable.gradients[name] = torch.zeros_like(parameter)
    trainable.gradients[f"{LAYER}.weight"][1, 1] = 3.0
    assert diagnosis.grad_norm(trainable) == 3 and diagnosis.bad_gradients(trainable) == []
    trainable.gradients[f"{LAYER}.weight"][0, 0] = -math.inf
    assert diagnosis.grad_norm(trainable) == math.inf and diagnosis.bad_gradients(trainable) == [f"{LAYER}.weight"]


def test_tokens_outside_the_mask_do_not_count():
    one = torch.tensor([[math.nan, 0.0, 1.0, -4.0], [9.0, 0.0, 0.0, 0.0]])
    two = torch.tensor([[0.0, 0.0, math.inf, 1.0], [0.0, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 1]])
    assert diagnosis.first_bad_token({"one": one, "two": two}, mask, 0) == 2
    assert diagnosis.first_bad_token({"one": one, "two": two}, mask, 1) is None
    assert diagnosis.largest(one, mask) == (-4.0, diagnosis.TokenPlace(0, 3))
    assert diagnosis.largest(two, mask) == (1.0, diagnosis.TokenPlace(0, 3)), "infinity is no largest value"
    assert diagnosis.largest(one, torch.zeros(2, 4)) is None
