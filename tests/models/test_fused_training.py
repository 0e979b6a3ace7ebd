"""The fused pass of training with LoRA adapters and with changed parameters. Without adapters it is compared with
transformers in tests/engine/test_forward.py."""

import sys

import pytest
import torch

from burnish.config.model import ModelConfig
from burnish.models import llama
from burnish.models.backbones import FusedBackbone, PackedBackbone, packing_problem
from burnish.models.lora import adapter_off, add_adapter
from burnish.ops.varlen_attention import Sequences
from tests.rollout.native.models import build

LENGTHS = [5, 1, 9, 3]
IDS = torch.arange(sum(LENGTHS)) * 7 % 80
POSITIONS = torch.cat([torch.arange(length) for length in LENGTHS])
FAMILIES = {"llama": {}, "qwen2": {}, "qwen3": {"head_dim": 16}, "mistral": {"sliding_window": 4}}


def run(backbone):
    return backbone(IDS, POSITIONS, Sequences.of(LENGTHS, "cpu"))


def gradients(module, backbone):
    module.zero_grad()
    states = run(backbone)
    (states * torch.arange(states.numel()).view_as(states).sin()).sum().backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


@pytest.fixture(params=[["all-linear"], ["q_proj", "gate_proj"]], ids=["all", "some"])
def adapted(request):
    """A model with an adapter that is felt."""
    pytest.importorskip("peft")

    def make(family):
        module = build(family, FAMILIES[family], sharpness=3).train()
        add_adapter(module, ModelConfig(path="b", lora_rank=3, lora_alpha=12, target_modules=request.param), seed=0)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if "lora_B" in name:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
        return module

    return make


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_have_the_values_and_gradients_of_pefts_own_layers(adapted, family, checkpointing):
    module = adapted(family)
    assert packing_problem(module.model) is None
    fused, plain = FusedBackbone(module.model), PackedBackbone(module.model)
    if checkpointing:
        module.gradient_checkpointing_enable({"use_reentrant": False})
    torch.testing.assert_close(run(fused), run(plain), atol=1e-5, rtol=1e-5)
    wanted, found = gradients(module, plain), gradients(module, fused)
    assert found.keys() == wanted.keys() == {name for name, _ in module.named_parameters() if "lora_" in name}
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5 * float(gradient.abs().max()), rtol=1e-4)


def test_the_adapter_can_be_switched_off(adapted):
    module = adapted("qwen2")
    assert packing_problem(module.model) is None
    fused, plain = FusedBackbone(module.model), PackedBackbone(module.model)
    with_adapter = run(fused)
    with adapter_off(module), torch.no_grad():
        torch.testing.assert_close(run(fused), run(plain), atol=1e-5, rtol=1e-5)
        assert not torch.allclose(run(fused), with_adapter, atol=1e-2)
    assert torch.equal(run(fused), with_adapter)


def test_frozen_layers_get_no_gradient():
    module = build("qwen2", {}).train()
    module.model.layers[0].requires_grad_(False)
    found = gradients(module, FusedBackbone(module.model))
    assert found and not [name for name in found if name.startswith("model.layers.0.")]


def test_rebound_weights_are_an_error_until_merged_again():
    module = build("qwen2", {})
    fused = FusedBackbone(module.model)
    before = run(fused)
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()
    with pytest.raises(RuntimeError, match="parameters were moved to other memory"):
        run(fused)
    assert torch.equal(run(FusedBackbone(module.model)), before)
    attention = module.model.layers[0].self_attn
    query = attention.q_proj.weight
    assert attention.k_proj.weight.data_ptr() == query[-1:].data_ptr() + 4 * query.shape[1]


def test_another_kind_of_model_is_refused():
    with pytest.raises(ValueError, match="GPT2Model is not one of LlamaModel"):
        FusedBackbone(build("gpt2", {}).transformer)
    assert llama.problem(build("qwen2", {}).model) is None


def test_layers_of_another_kind_are_refused_without_peft(monkeypatch):
    """It is an extra; a quantised or wrapped layer is refused without it too."""
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setitem(sys.modules, "peft.tuners.lora", None)

    class Other(torch.nn.Linear):
        pass

    module = build("qwen2", {})
    module.model.layers[0].mlp.down_proj = Other(4, 4)
    assert "down_proj is a" in llama.problem(module.model)
