import pytest
import torch

from burnish.engine.flops import mfu, sequence_flops


def test_flops_count_parameters_and_attention_but_no_lookup_and_no_frozen_gradient(causal_lm, value_model):
    config, parameters = causal_lm.config, sum(p.numel() for p in causal_lm.parameters())
    forward = sequence_flops(causal_lm, [10, 20], backward=False)
    attention = 2 * config.num_hidden_layers * config.hidden_size * (100 + 400)
    assert forward == pytest.approx(2 * parameters * 30 + attention)
    assert sequence_flops(causal_lm, [10, 20], backward=True) == pytest.approx(3 * forward)
    frozen = causal_lm.get_input_embeddings().weight.requires_grad_(False).numel()
    assert sequence_flops(causal_lm, [10, 20], backward=True) == pytest.approx(3 * forward - 2 * frozen * 30)
    parameters = sum(p.numel() for n, p in value_model.named_parameters() if "embed_tokens" not in n)
    expected = 2 * parameters + 2 * config.num_hidden_layers * config.hidden_size
    assert sequence_flops(value_model, [1], backward=False) == pytest.approx(expected)


def test_mfu_only_where_a_peak_is_known(monkeypatch):
    assert mfu(1e12, 1.0, "cpu") is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert mfu(989e12, 2.0, "cuda") == pytest.approx(0.5)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some Other Card")
    assert mfu(1e12, 1.0, "cuda") is None
