"""The three ways through a model, adapters in the fused one, and the attention that a paged pass refuses.

The values and gradients of each are compared with transformers in tests/engine/test_forward.py.
"""

import sys
from dataclasses import replace

import pytest
import torch

from burnish.config.model import ModelConfig
from burnish.errors import NotAvailable
from burnish.models import llama
from burnish.models.attention import layers_of
from burnish.models.backbones import FusedBackbone, PackedBackbone, PaddedBackbone, backbone_for, packing_problem
from burnish.models.loading import load_causal_lm
from burnish.models.lora import adapter_off, add_adapter
from burnish.models.tiny import byte_tokenizer, write_tiny_model
from burnish.ops.varlen_attention import Sequences
from burnish.rollout.native.engine import NativeEngine
from tests.rollout.native.models import DOUBTFUL, EXPERTS, GROUPED, build, family
from tests.rollout.native.models import FAMILIES as NATIVE

WAYS = {
    "fused": (ModelConfig(), FusedBackbone),
    "packed": (ModelConfig(use_fused_kernels=False), PackedBackbone),
    "padded": (ModelConfig(use_remove_padding=False), PaddedBackbone),
    "insisted on": (ModelConfig(use_fused_kernels=True), FusedBackbone),
}
FAMILIES = {"llama": {}, "qwen2": {}, "qwen3": {"head_dim": 16}, "mistral": {"sliding_window": 4}}
LENGTHS = [5, 1, 9, 3]
IDS = torch.arange(sum(LENGTHS)) * 7 % 80
POSITIONS = torch.cat([torch.arange(length) for length in LENGTHS])
PADDING = int(IDS[2])  # a token that is sampled like any other, as it is where padding is the end of a text


def way_through(module, config):
    return backbone_for(module, config, llama.problem(module.model))


def run(backbone):
    return backbone(IDS, POSITIONS, Sequences.of(LENGTHS, "cpu"))


def gradients(module, backbone):
    module.zero_grad()
    states = run(backbone)
    (states * torch.arange(states.numel()).view_as(states).sin()).sum().backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def assert_same_gradients(found, wanted, least=0.0):
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        size = max(least, float(gradient.abs().max()))
        torch.testing.assert_close(found[name], gradient, atol=1e-5 * size, rtol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_a_padding_token_in_a_text_is_trained_like_any_other(way):
    """By transformers' own modules it is not, and often it is the end of a text."""
    module, plain = build("qwen2", {"pad_token_id": PADDING}), build("qwen2", {"pad_token_id": None})
    with torch.no_grad():
        module.model.embed_tokens.weight[PADDING].normal_(generator=torch.Generator().manual_seed(0))
    plain.load_state_dict(module.state_dict())
    assert module.model.embed_tokens.padding_idx == PADDING and plain.model.embed_tokens.padding_idx is None
    expected = gradients(plain, way_through(plain, WAYS["padded"][0])[0])
    assert expected["model.embed_tokens.weight"][PADDING].any()
    assert_same_gradients(gradients(module, way_through(module, WAYS[way][0])[0]), expected, least=1.0)


@pytest.mark.parametrize("way", WAYS)
def test_the_keys_choose_the_way_and_a_pass_writes_nowhere(way):
    """Neither weights nor ids, and a second pass gives the same."""
    module, (config, kind) = build("qwen2", {}), WAYS[way]
    before, ids = {name: tensor.clone() for name, tensor in module.state_dict().items()}, IDS.clone()
    backbone, problem = way_through(module, config)
    assert type(backbone) is kind and problem is None
    first, second = run(backbone), run(backbone)
    assert torch.equal(first, second) and torch.equal(ids, IDS)
    first.sum().backward()
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    states = backbone(torch.tensor([7]), torch.tensor([0]), Sequences.of([1], "cpu"))  # a line of one token
    expected = module.model(input_ids=torch.tensor([[7]])).last_hidden_state[0]
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)
    module.requires_grad_(False).model.layers[1].mlp.requires_grad_(True)  # frozen layers stay without a gradient
    found = gradients(module, way_through(module, config)[0])
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    assert sorted(found) == sorted(trained) and all(gradient.any() for gradient in found.values())


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
        assert packing_problem(module.model) is None
        return module

    return make


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_have_the_values_and_gradients_of_pefts_own_layers(adapted, family, checkpointing):
    """Also while the adapter is switched off, after which it is on again."""
    module = adapted(family)
    fused, plain = FusedBackbone(module.model), PackedBackbone(module.model)
    if checkpointing:
        module.gradient_checkpointing_enable({"use_reentrant": False})
    with_adapter = run(fused)
    torch.testing.assert_close(with_adapter, run(plain), atol=1e-5, rtol=1e-5)
    wanted, found = gradients(module, plain), gradients(module, fused)
    assert wanted.keys() == {name for name, _ in module.named_parameters() if "lora_" in name}
    assert_same_gradients(found, wanted)
    with adapter_off(module), torch.no_grad():
        torch.testing.assert_close(run(fused), run(plain), atol=1e-5, rtol=1e-5)
        assert not torch.allclose(run(fused), with_adapter, atol=1e-2)
    assert torch.equal(run(fused), with_adapter)


def test_rebound_weights_are_read_where_they_are_until_merged_again():
    module = build("qwen2", {})
    fused = FusedBackbone(module.model)
    before = run(fused)
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()
    assert torch.equal(run(fused), before)
    assert torch.equal(run(FusedBackbone(module.model)), before)
    attention = module.model.layers[0].self_attn
    query = attention.q_proj.weight
    assert attention.k_proj.weight.data_ptr() == query[-1:].data_ptr() + 4 * query.shape[1]


def test_layers_of_another_kind_are_refused_without_peft(monkeypatch):
    """It is an extra; a quantised or wrapped layer is refused without it too."""
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setitem(sys.modules, "peft.tuners.lora", None)

    class Other(torch.nn.Linear):
        pass

    module = build("qwen2", {})
    assert llama.problem(module.model) is None
    module.model.layers[0].mlp.down_proj = Other(4, 4)
    assert "down_proj is a" in llama.problem(module.model)
    assert "GPT2Model is not one of LlamaModel" in llama.problem(build("gpt2", {}).transformer)


WINDOW = 24  # above the tokens of the engine's canary, which would find a smaller one
OWN_WINDOW = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
IN_THE_MASK_ALONE = {
    "llama4_text": DOUBTFUL["llama4_text"] | {"attention_chunk_size": WINDOW},
    "qwen2_moe": GROUPED | EXPERTS | OWN_WINDOW | {"shared_expert_intermediate_size": 32},
    "phimoe": GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
}
LINE = torch.arange(3, 43)


@torch.no_grad()
def plain_logits(module):
    return module(input_ids=LINE[None]).logits[0]


@pytest.mark.parametrize("name", [*IN_THE_MASK_ALONE, "doge"])
def test_a_window_that_only_the_mask_has_or_a_custom_mask_is_refused(name):
    module = build(name, IN_THE_MASK_ALONE.get(name) or DOUBTFUL[name])
    words = "it makes its own mask" if name == "doge" else f".*window of {WINDOW} tokens"
    with pytest.raises(NotAvailable, match=rf"{type(module).__name__}: {words}.*rollout\.name=hf"):
        layers_of(module)


@pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3", "flex_attention"])
def test_attention_that_cannot_be_paged_is_refused_by_name(attention):
    module = family("qwen2")
    module.config._attn_implementation = attention
    words = rf"attn_implementation={attention}. Choose attn_implementation=sdpa or eager"
    with pytest.raises(NotAvailable, match=words):
        layers_of(module)


def test_a_refused_model_is_left_as_it_was():
    capped = build(NATIVE["gemma2"][0], NATIVE["gemma2"][1] | {"attn_implementation": "sdpa"})
    before = plain_logits(capped)
    words = r"Gemma2ForCausalLM: sdpa leaves out its capped scores. Choose attn_implementation=eager"
    with pytest.raises(NotAvailable, match=words):
        NativeEngine(capped, byte_tokenizer(), blocks=32)
    assert capped.config._attn_implementation == "sdpa" and torch.equal(plain_logits(capped), before)


def test_loading_chooses_attention_that_has_the_caps(tmp_path):
    settings = {"model_type": "gemma2", "head_dim": 16, "query_pre_attn_scalar": 16}
    capped = write_tiny_model(tmp_path / "capped", attn_logit_softcapping=1.0, **settings)
    uncapped = write_tiny_model(tmp_path / "uncapped", attn_logit_softcapping=None, **settings)
    automatic = ModelConfig()
    assert automatic.attn_implementation == "auto"
    module = load_causal_lm(capped, automatic)
    assert module.config._attn_implementation == "eager"
    assert NativeEngine(module, byte_tokenizer(), blocks=64).context > 0
    assert load_causal_lm(uncapped, automatic).config._attn_implementation == "sdpa"
    chosen = load_causal_lm(capped, replace(automatic, attn_implementation="sdpa"))
    assert chosen.config._attn_implementation == "sdpa"  # what is asked for is never changed in silence
