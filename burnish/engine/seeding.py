"""What makes torch repeatable: its seed and, where `trainer.deterministic` asks for it, deterministic algorithms."""

import os

import torch


def seed_torch(seed: int, *, deterministic: bool) -> None:
    """Seed every generator. Deterministic: operations that cannot repeat bit for bit on this device raise."""
    torch.manual_seed(seed)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats only with its own workspaces
    torch.use_deterministic_algorithms(deterministic)
