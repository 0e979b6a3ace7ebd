"""What `auto` means on a device."""

import pytest
import torch

from burnish.models.device import dtype_on


@pytest.mark.parametrize("capability, expected", [((7, 5), "float32"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")])
def test_auto_is_bfloat16_on_a_gpu_that_has_it(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert dtype_on("cuda:0", "auto") == expected
    assert dtype_on("cuda:0", "float16") == "float16"
    assert dtype_on("cpu", "auto") == "float32" and dtype_on("cpu", "bfloat16") == "bfloat16"
