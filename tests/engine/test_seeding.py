import os

import torch

from burnish.engine.seeding import seed_torch


def test_the_seed_decides_what_is_drawn_and_deterministic_algorithms_come_with_what_cublas_needs(monkeypatch, request):
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "there")  # so that monkeypatch puts back what was, or was not, set
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    drawn = []
    for seed in (3, 3, 4):
        seed_torch(seed, deterministic=False)
        drawn.append(torch.rand(4))
    assert drawn[0].equal(drawn[1]) and not drawn[0].equal(drawn[2])
    assert not torch.are_deterministic_algorithms_enabled() and "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    seed_torch(0, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled() and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    seed_torch(0, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # a setting of the user stays
    seed_torch(0, deterministic=True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
