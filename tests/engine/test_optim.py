import math

import pytest
import torch

from burnish.config.optim import OptimConfig
from burnish.engine.optim import clip_gradients, learning_rate, make_optimizer
from burnish.errors import ConfigError


def test_warm_up_then_constant_or_a_cosine_to_its_floor():
    at = learning_rate(OptimConfig(lr=1.0, lr_warmup_steps=3), total_steps=10)
    assert [at(step) for step in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert learning_rate(OptimConfig(lr=1.0, lr_warmup_steps_ratio=0.2), 10)(1) == pytest.approx(2 / 3)
    assert learning_rate(OptimConfig(lr=1.0, lr_warmup_steps=0, lr_warmup_steps_ratio=0.2), 10)(0) == 1.0
    at = learning_rate(OptimConfig(lr=2.0, lr_scheduler_type="cosine", min_lr_ratio=0.1), total_steps=11)
    assert at(0) == 2.0 and at(5) == pytest.approx(1.1) and at(10) == pytest.approx(0.2) and at(50) == at(10)
    assert at(2) == pytest.approx(0.2 + 1.8 * 0.5 * (1 + math.cos(math.pi * 0.2)))


def test_clipping_returns_the_norm_before_and_the_optimizer_takes_its_settings():
    p, q = torch.tensor([3.0]), torch.tensor([4.0])
    assert float(clip_gradients([p, q], None)) == 5.0 and p.item() == 3.0
    assert float(clip_gradients([p, q], 1.0)) == 5.0
    assert [p.item(), q.item()] == pytest.approx([0.6, 0.8], abs=1e-5)
    assert float(clip_gradients([p, q], 2.0)) == pytest.approx(1.0, abs=1e-5)
    assert p.item() == pytest.approx(0.6, abs=1e-5)
    p = torch.nn.Parameter(torch.ones(2))
    adam = make_optimizer([p], OptimConfig(betas=(0.8, 0.95), weight_decay=0.3))
    assert isinstance(adam, torch.optim.AdamW)
    assert adam.defaults["betas"] == (0.8, 0.95) and adam.defaults["weight_decay"] == 0.3
    with pytest.raises(ConfigError, match=r"optim.optimizer=Lion: choose AdamW"):
        make_optimizer([p], OptimConfig(optimizer="Lion"))
