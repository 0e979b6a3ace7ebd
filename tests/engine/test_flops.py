import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

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


MOE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
       "vocab_size": 64, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}  # fmt: skip
# Of a layer: q, k and v, o, router, 2 of 4 experts, two norms.
LAYER = 32 * 64 + 2 * 32 * 32 + 64 * 32 + 4 * 32 + 2 * 3 * 32 * 16 + 2 * 32


@pytest.mark.parametrize(
    ("kind", "others", "layer"),
    [
        ("qwen3_moe", {}, LAYER + 2 * 16),  # norms of q and k
        (
            "qwen2_moe",
            {"shared_expert_intermediate_size": 8},
            LAYER + 4 * 32 + 3 * 32 * 8 + 32,
        ),  # biases, shared expert
    ],
)
def test_flops_count_active_experts_and_heads_of_any_size(kind, others, layer):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **MOE, **others))
    forward = 2 * (2 * layer + 32 + 64 * 32) * 10 + 2 * (2 * 4 * 16) * 100  # 10 tokens; attention on half of the pairs
    assert sequence_flops(model, [10], backward=False) == forward
    assert sequence_flops(model, [10], backward=True) == 3 * forward


def test_mfu_only_where_a_peak_is_known(monkeypatch):
    assert mfu(1e12, 1.0, "cpu") is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert mfu(989e12, 2.0, "cuda") == pytest.approx(0.5)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some Other Card")
    assert mfu(1e12, 1.0, "cuda") is None
