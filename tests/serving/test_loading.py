"""What is refused before a model is loaded, in the words of these commands."""

from pathlib import Path

import pytest
import torch

from burnish.errors import ConfigError, NotAvailable
from burnish.rollout.hosted import spec
from burnish.serving.loading import ModelOptions, load

NANO = str(Path(__file__).parents[2] / "burnish" / "models" / "nano")


@pytest.fixture
def installed(monkeypatch):
    """`installed(version)`: as if that version of every program were there."""

    def pretend(version):
        monkeypatch.setattr(spec, "find_spec", lambda name: name)
        monkeypatch.setattr(spec, "version", lambda name: version)

    return pretend


def test_an_engine_that_cannot_use_a_gpu(installed, monkeypatch):
    installed("0.5.23")
    monkeypatch.setattr("burnish.models.device.pick_device", lambda *_, **__: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(NotAvailable, match=r"on a GPU \(--engine sglang\).*Use --engine vllm or --engine native"):
        load(ModelOptions(NANO, engine="sglang"))


def test_a_gpu_build_of_vllm_on_cpu_is_refused(installed):
    installed("0.32.0")
    with pytest.raises(ConfigError, match=r"^--engine vllm on a CPU: vLLM 0\.32\.0 .*built for GPUs.*--engine native"):
        load(ModelOptions(NANO, engine="vllm", device="cpu"))
