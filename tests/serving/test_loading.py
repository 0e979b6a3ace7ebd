"""What is refused before a model is loaded, in the words of these commands."""

import pytest
import torch

from burnish.errors import ConfigError, NotAvailable
from burnish.rollout.hosted import spec
from burnish.serving.loading import ModelOptions, load
from tests.serving.conftest import NANO


@pytest.mark.parametrize(
    ("engine", "version", "error", "words"),
    [
        ("sglang", "0.5.23", NotAvailable, r"on a GPU \(--engine sglang\).*Use --engine vllm or --engine native"),
        ("vllm", "0.32.0", ConfigError, r"^--engine vllm on a CPU: vLLM 0\.32\.0 .*built for GPUs.*--engine native"),
    ],
)
def test_an_engine_that_cannot_use_the_device(monkeypatch, engine, version, error, words):
    monkeypatch.setattr(spec, "find_spec", lambda name: name)  # as if that version were installed
    monkeypatch.setattr(spec, "version", lambda name: version)
    on_gpu = engine == "sglang"
    if on_gpu:
        monkeypatch.setattr("burnish.models.device.pick_device", lambda *_, **__: torch.device("cuda", 0))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(error, match=words):
        load(ModelOptions(str(NANO), engine=engine, device="auto" if on_gpu else "cpu"))
