"""The check on a GPU: copies, casts and merged adapters are proven there too."""

import pytest
import torch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_models_and_adapters_on_the_gpu(run, make_adapter, tiny_model, go, logits, tmp_path, dtype):
    copied = go(run, "copied", device="cuda", dtype=dtype)
    assert copied.facts.found.largest <= copied.facts.allowed.largest
    adapter = make_adapter()
    merged = go(adapter, "merged", device="auto", dtype=dtype)
    assert merged.facts.from_float32.mean < merged.facts.effect.mean / 2
    assert torch.allclose(logits(tmp_path / "merged").float(), logits(tiny_model, adapter), atol=0.1)
