import os

import pytest
import torch

from burnish.engine.seeding import seed_torch


@pytest.fixture(autouse=True)
def put_back(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "there")  # so that monkeypatch puts back what was, or was not, set
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    yield
    torch.use_deterministic_algorithms(False)


def test_the_seed_decides_what_is_drawn():
    seed_torch(3, deterministic=False)
    first = torch.rand(4)
    seed_torch(3, deterministic=False)
    assert torch.rand(4).equal(first)
    seed_torch(4, deterministic=False)
    assert not torch.rand(4).equal(first)


def test_deterministic_algorithms_come_with_what_cublas_needs():
    seed_torch(0, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled() and "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    seed_torch(0, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled() and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    seed_torch(0, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_workspace_setting_of_the_user_stays(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    seed_torch(0, deterministic=True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
