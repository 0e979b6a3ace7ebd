"""What a worker does before it has a model."""

import pytest
import torch

from burnish.config import PPOConfig
from burnish.workers.model_worker import ModelWorker


@pytest.fixture(autouse=True)
def as_it_was():
    state, strict = torch.get_rng_state(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(strict)
    torch.set_rng_state(state)


def test_a_worker_is_seeded_also_where_it_is_alone(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    config = PPOConfig()
    config.trainer.seed, config.trainer.deterministic = 5, True
    torch.rand(3)
    ModelWorker(config, 1)
    drawn = torch.rand(3)
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(5)))
    assert torch.are_deterministic_algorithms_enabled()
