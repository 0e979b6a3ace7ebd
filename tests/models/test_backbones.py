"""The three ways through a model: which one is chosen, and what each leaves alone."""

import pytest
import torch

from burnish.config.model import ModelConfig
from burnish.models.backbones import FusedBackbone, PackedBackbone, PaddedBackbone, backbone_for
from burnish.ops.varlen_attention import Sequences
from tests.rollout.native.models import build

WAYS = {
    "fused": (ModelConfig(), FusedBackbone),
    "packed": (ModelConfig(use_fused_kernels=False), PackedBackbone),
    "padded": (ModelConfig(use_remove_padding=False), PaddedBackbone),
    "insisted on": (ModelConfig(use_fused_kernels=True), FusedBackbone),
}
LENGTHS = [4, 1, 7]
IDS = torch.tensor([9, 2, 5, 2, 7, 2, 3, 3, 2, 8, 1, 4])
PADDING = 2  # a token that is sampled like any other, as it is where padding is the end of a text


def line():
    return IDS, torch.cat([torch.arange(length) for length in LENGTHS]), Sequences.of(LENGTHS, "cpu")


def gradients(module, way):
    backbone, _ = backbone_for(module, WAYS[way][0])
    states = backbone(*line())
    (states * torch.arange(1.0, states.numel() + 1).view_as(states).sin()).sum().backward()
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("way", WAYS)
def test_a_padding_token_in_a_text_is_trained_like_any_other(way):
    """By transformers' own modules it is not, and often it is the end of a text."""
    module, plain = build("qwen2", {"pad_token_id": PADDING}), build("qwen2", {"pad_token_id": None})
    with torch.no_grad():
        module.model.embed_tokens.weight[PADDING].normal_(generator=torch.Generator().manual_seed(0))
    plain.load_state_dict(module.state_dict())
    assert module.model.embed_tokens.padding_idx == PADDING and plain.model.embed_tokens.padding_idx is None
    expected, found = gradients(plain, "padded"), gradients(module, way)
    assert found.keys() == expected.keys() and expected["model.embed_tokens.weight"][PADDING].any()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5 * max(1.0, float(gradient.abs().max())), rtol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_the_keys_choose_the_way_and_a_pass_writes_nowhere(way):
    """Neither weights nor ids, and a second pass gives the same."""
    module, (config, kind) = build("qwen2", {}), WAYS[way]
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    backbone, problem = backbone_for(module, config)
    assert type(backbone) is kind and problem is None
    ids, positions, sequences = line()
    first, second = (backbone(ids, positions, sequences) for _ in range(2))
    assert torch.equal(first, second) and torch.equal(ids, IDS)
    first.sum().backward()
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize("way", WAYS)
def test_frozen_layers_stay_without_a_gradient(way):
    module = build("qwen2", {}).requires_grad_(False)
    module.model.layers[1].mlp.requires_grad_(True)
    found = gradients(module, way)
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    assert sorted(found) == sorted(trained) and all(gradient.any() for gradient in found.values())


@pytest.mark.parametrize("way", ["fused", "packed", "padded"])
def test_a_line_of_one_token(way):
    module = build("qwen2", {})
    backbone, _ = backbone_for(module, WAYS[way][0])
    states = backbone(torch.tensor([7]), torch.tensor([0]), Sequences.of([1], "cpu"))
    expected = module.model(input_ids=torch.tensor([[7]])).last_hidden_state[0]
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)
