"""The device of this process, as users' workers and losses ask for it."""

from typing import Any

import torch

is_cuda_available = torch.cuda.is_available()
is_npu_available = False


def get_device_name() -> str:
    return "cuda" if is_cuda_available else "cpu"


def get_torch_device() -> Any:
    """`torch.cuda` or `torch.cpu`."""
    return getattr(torch, get_device_name())


def get_device_id() -> Any:
    return get_torch_device().current_device()
